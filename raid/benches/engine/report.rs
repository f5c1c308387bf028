//! The table, for people and for programs.

use super::cost::Subject;
use super::figures::{Bar, Figure, Figures};

/// What the engine may use of a core for a figure to count.
const CPU_MOST: f64 = 0.30;

/// What RAID 0 and 1 may add to a member's CPU time.
const ADDED_MOST: f64 = 1e-6;

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn bar(bar: Option<Bar>) -> String {
    match bar {
        Some(Bar::AtLeast(value)) => format!(">= {value:.2}"),
        Some(Bar::AtMost(value)) => format!("<= {value:.2}"),
        None => String::new(),
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// A subject's median CPU times of a read and of a write, and whether it has to be near to those of
/// a member alone, and is.
struct Cost<'a> {
    name: &'a str,
    read: f64,
    write: f64,
    is_near: Option<bool>,
}

fn costs(subjects: &[Subject]) -> Vec<Cost<'_>> {
    let alone = subjects.first().map_or((0.0, 0.0), |s| (median(&s.reads), median(&s.writes)));
    let cost = |subject: &'_ Subject| {
        let (read, write) = (median(&subject.reads), median(&subject.writes));
        let is_near = read - alone.0 <= ADDED_MOST && write - alone.1 <= ADDED_MOST;
        let has_bar = subject.name.starts_with("RAID 0") || subject.name.starts_with("RAID 1,");
        (read, write, has_bar.then_some(is_near))
    };
    subjects
        .iter()
        .map(|subject| {
            let (read, write, is_near) = cost(subject);
            Cost { name: &subject.name, read, write, is_near }
        })
        .collect()
}

/// Prints tables; answers how many bars are missed.
pub fn text(figures: &Figures, subjects: &[Subject]) -> usize {
    let mut missed = 0;
    let is_missed = |figure: &Figure| figures.missed().any(|other| std::ptr::eq(other, figure));
    if !figures.figures.is_empty() {
        println!(
            "{:<74} {:>9} {:>8} {:>8} {:>7}",
            "over throttled members", "measured", "bar", "ceiling", "CPU"
        );
    }
    for figure in &figures.figures {
        let (value, cpu) = (figures.value(figure), figures.entry(figure).cpu());
        let ceiling = figure.ceiling.map_or(String::new(), |ceiling| format!("{ceiling:.2}"));
        let mut notes = String::new();
        if is_missed(figure) {
            missed += 1;
            notes += "  MISSED";
        }
        if cpu > CPU_MOST {
            notes += "  (too much CPU)";
        }
        println!(
            "{:<74} {:>9} {:>8} {ceiling:>8} {:>5.1} %{notes}",
            figure.name,
            number(value),
            bar(figure.bar),
            cpu * 100.0
        );
    }
    if !subjects.is_empty() {
        println!();
        println!("{:<50} {:>12} {:>12}", "CPU time of 4 KiB, in memory", "read, µs", "write, µs");
    }
    for cost in costs(subjects) {
        let note = match cost.is_near {
            Some(true) => "  at most 1 µs more than a member",
            Some(false) => "  MISSED: more than 1 µs over a member",
            None => "",
        };
        missed += usize::from(cost.is_near == Some(false));
        println!("{:<50} {:>12.2} {:>12.2}{note}", cost.name, cost.read * 1e6, cost.write * 1e6);
    }
    println!("\n{missed} bars missed");
    missed
}

/// Prints one JSON object; answers how many bars are missed.
pub fn json(figures: &Figures, subjects: &[Subject], runs: usize, cores: usize) -> usize {
    let mut missed = figures.missed().count();
    let figure = |figure: &Figure| {
        let (value, entry) = (figures.value(figure), figures.entry(figure));
        let bar = match figure.bar {
            Some(Bar::AtLeast(value)) => format!("{{\"at_least\": {value}}}"),
            Some(Bar::AtMost(value)) => format!("{{\"at_most\": {value}}}"),
            None => "null".into(),
        };
        let is_met = figure.bar.map_or("null".into(), |bar| bar.is_met(value).to_string());
        let runs: Vec<_> = entry.runs.iter().map(|run| run.value.to_string()).collect();
        let ceiling = figure.ceiling.map_or("null".into(), |ceiling| ceiling.to_string());
        format!(
            "    {{\"what\": \"{}\", \"value\": {value}, \"bar\": {bar}, \"met\": {is_met}, \
             \"ceiling\": {ceiling}, \"cpu_ratio\": {}, \"runs\": [{}]}}",
            figure.name,
            entry.cpu(),
            runs.join(", ")
        )
    };
    let list: Vec<_> = figures.figures.iter().map(figure).collect();
    let costs: Vec<_> = costs(subjects)
        .iter()
        .map(|cost| {
            missed += usize::from(cost.is_near == Some(false));
            let is_near = cost.is_near.map_or("null".into(), |is_near| is_near.to_string());
            format!(
                "    {{\"what\": \"{}\", \"read_seconds\": {}, \"write_seconds\": {}, \
                 \"met\": {is_near}}}",
                cost.name, cost.read, cost.write
            )
        })
        .collect();
    println!(
        "{{\n  \"schema\": \"raidfabric.engine-bench/1\",\n  \"runs\": {runs},\n  \
         \"cores\": {cores},\n  \"missed\": {missed},\n  \"figures\": [\n{}\n  ],\n  \
         \"cpu\": [\n{}\n  ]\n}}",
        list.join(",\n"),
        costs.join(",\n")
    );
    missed
}
