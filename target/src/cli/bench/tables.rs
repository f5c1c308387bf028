//! A run's numbers for people: the same that `--output json` has.

use std::time::Duration;

use raidfabric_initiator::bench::{Access, Report, Side, SweepReport};

use super::super::print;
use crate::config::format_bytes;

/// A run's result.
pub(super) fn report(report: &Report) -> String {
    let mut table = print::table(&["", "IOPS", "MB/s", "mean", "p50", "p99", "p99.9", "max"], true);
    let sides = [("read", &report.read), ("write", &report.write), ("total", &report.total)];
    let mixed = report.read.operations > 0 && report.write.operations > 0;
    for (name, side) in sides {
        if side.operations == 0 || (name == "total" && !mixed) {
            continue;
        }
        table.add_row(row(name, side));
    }
    let mut text = format!("{}\n{}\n", title(report), table.trim_fmt());
    if report.total.operations == 0 {
        text.push_str("no operation ended while measuring: use a longer --duration\n");
    }
    if let Some(seen) = &report.verification {
        text.push_str(&format!(
            "verified: {} reads under load and {} places read back at the end, all as written\n",
            grouped(seen.checked_reads as f64),
            grouped(seen.checked_places as f64),
        ));
    }
    text
}

fn row(name: &str, side: &Side) -> Vec<String> {
    let latency = &side.latency_ns;
    let mut cells =
        vec![name.to_owned(), grouped(side.iops), format!("{:.1}", side.bytes_per_second / 1e6)];
    let times =
        [latency.mean as u64, latency.p50, latency.p99, latency.p99_9, latency.max].map(time);
    cells.extend(times);
    cells
}

/// What was done, in a line.
fn title(report: &Report) -> String {
    let access = match report.access {
        Access::Random => "random",
        Access::Sequential => "sequential",
    };
    let what = match report.read_percent {
        100 => "reads".to_owned(),
        0 => "writes".to_owned(),
        percent => format!("{percent} % reads, {} % writes", 100 - u16::from(percent)),
    };
    let mut text = format!(
        "{access} {what} of {}, depth {} on {}, {}, for {:.3} s",
        format_bytes(report.io_bytes.into()),
        report.queue_depth,
        count(report.connections, "connection"),
        count(report.workers, "worker"),
        report.seconds,
    );
    let options = [
        (report.header_digest, ", header digests"),
        (report.data_digest, ", data digests"),
        (report.sq_flow_control_disabled, ", no SQ flow control"),
    ];
    options.iter().filter(|(on, _)| *on).for_each(|(_, name)| text.push_str(name));
    text
}

/// A sweep's result: a row for each depth, two columns for each number of workers.
pub(super) fn sweep(sweep: &SweepReport) -> String {
    let mut workers: Vec<u16> = sweep.rows.iter().map(|row| row.workers).collect();
    workers.dedup();
    let mut depths: Vec<u16> = sweep.rows.iter().map(|row| row.queue_depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let mut header = vec!["depth".to_owned()];
    for workers in &workers {
        header.extend([format!("IOPS, {}", count(*workers, "worker")), "mean".to_owned()]);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = print::table(&header, true);
    for depth in depths {
        let mut cells = vec![depth.to_string()];
        for workers in &workers {
            let row = sweep.rows.iter().find(|r| (r.queue_depth, r.workers) == (depth, *workers));
            cells.extend(match row.and_then(|row| row.report.as_ref()) {
                Some(report) => {
                    let total = &report.total;
                    [grouped(total.iops), time(total.latency_ns.mean as u64)]
                }
                None => ["-".to_owned(), "-".to_owned()],
            });
        }
        table.add_row(cells);
    }
    let mut text = format!("{}\n", table.trim_fmt());
    let mut reasons: Vec<&str> = sweep.rows.iter().filter_map(|r| r.skipped.as_deref()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        text.push_str(&format!("- not measured: {reason}\n"));
    }
    text
}

/// A whole number in groups of three digits.
pub(super) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A latency with three or four digits that tell.
fn time(nanoseconds: u64) -> String {
    let seconds = Duration::from_nanos(nanoseconds).as_secs_f64();
    match nanoseconds {
        0..1_000_000 => format!("{:.1} µs", seconds * 1e6),
        1_000_000..1_000_000_000 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// `1 worker`, `2 workers`.
pub(super) fn count(number: u16, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raidfabric_initiator::bench::{Latency, SweepRow, Verification};

    fn side(operations: u64) -> Side {
        let latency_ns = Latency {
            mean: 85_310.4,
            min: 20_000,
            p50: 80_000,
            p90: 90_000,
            p99: 1_234_000,
            p99_9: 20_000_000,
            max: 3_000_000_000,
        };
        let iops = operations as f64 / 2.0;
        let bytes = operations * 4096;
        Side { operations, bytes, iops, bytes_per_second: bytes as f64 / 2.0, latency_ns }
    }

    fn some(read: u64, write: u64) -> Report {
        Report {
            schema: "raidfabric.bench/1",
            address: "127.0.0.1:4420".into(),
            subnqn: "nqn.2026-11.io.raidfabric:fast".into(),
            nsid: 1,
            block_bytes: 4096,
            access: Access::Random,
            read_percent: if write == 0 { 100 } else { 70 },
            io_bytes: 4096,
            queue_depth: 32,
            connections: 2,
            workers: 1,
            header_digest: write > 0,
            data_digest: false,
            sq_flow_control_disabled: write > 0,
            seconds: 2.0,
            total: side(read + write),
            read: side(read),
            write: side(write),
            verification: None,
        }
    }

    #[test]
    fn a_run_of_reads_has_one_row() {
        assert_eq!(
            report(&some(1_234_567, 0)),
            "random reads of 4 KiB, depth 32 on 2 connections, 1 worker, for 2.000 s\n         \
             IOPS    MB/s     mean      p50      p99     p99.9     max\n\
             read  617,284  2528.4  85.3 µs  80.0 µs  1.23 ms  20.00 ms  3.00 s\n"
        );
    }

    #[test]
    fn a_mixed_run_has_three_rows_and_says_what_was_verified() {
        let mut mixed = some(700, 300);
        mixed.verification = Some(Verification { checked_reads: 1700, checked_places: 40 });
        let text = report(&mixed);
        let starts: Vec<_> =
            text.lines().map(|line| line.split(' ').next().unwrap_or("")).collect();
        assert_eq!(starts, ["random", "", "read", "write", "total", "verified:"], "{text}");
        assert!(text.contains("70 % reads, 30 % writes"), "{text}");
        assert!(text.contains("header digests, no SQ flow control"), "{text}");
        assert!(text.contains("1,700 reads under load and 40 places"), "{text}");
        assert!(report(&some(0, 0)).contains("longer --duration"));
    }

    #[test]
    fn a_sweep_says_what_it_could_not_measure() {
        let row = |workers, queue_depth, report: Option<Report>| SweepRow {
            queue_depth,
            workers,
            skipped: report.is_none().then(|| "queues hold 127 commands".to_owned()),
            report,
        };
        let table = sweep(&SweepReport {
            schema: "raidfabric.bench-sweep/1",
            rows: vec![
                row(1, 1, Some(some(2_000, 0))),
                row(1, 2, Some(some(4_000, 0))),
                row(2, 1, Some(some(6_000, 0))),
                row(2, 2, None),
            ],
        });
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].contains("IOPS, 1 worker") && lines[0].contains("IOPS, 2 workers"));
        let cells: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(cells, ["1", "1,000", "85.3", "µs", "3,000", "85.3", "µs"]);
        let cells: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(cells, ["2", "2,000", "85.3", "µs", "-", "-"]);
        assert_eq!(lines[3], "- not measured: queues hold 127 commands");
    }

    #[test]
    fn numbers_in_groups() {
        for (number, text) in
            [(0.0, "0"), (999.6, "1,000"), (123_456.0, "123,456"), (1e6, "1,000,000")]
        {
            assert_eq!(grouped(number), text);
        }
    }
}
