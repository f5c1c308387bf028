//! `docs/commands.md` shows every command's help as it is; completions and manual pages are made.
//!
//! After a change of the command line, `RAIDFABRIC_BLESS=1 cargo test -p raidfabric --test cli`
//! writes the new help into the document, and the change shows in the review.

use std::fs;
use std::path::Path;

use crate::program::{folder, run};

/// A line before a block of the document that holds the output of a command.
const MARK: &str = "<!-- output: ";

fn document() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md")
}

/// The document with each marked block replaced by what the command prints now, and the commands.
fn renewed(text: &str) -> (String, Vec<String>) {
    let mut renewed = String::new();
    let mut commands = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        renewed += line;
        renewed.push('\n');
        let Some(command) = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        assert_eq!(lines.next(), Some("```text"), "a block follows {line}");
        let end = lines.by_ref().find(|line| *line == "```");
        assert!(end.is_some(), "the block after {line} ends");
        let arguments: Vec<_> = command.split(' ').skip(1).collect();
        let output = run(&arguments);
        let output: Vec<_> = output.succeeds().lines().map(str::trim_end).collect();
        renewed += &format!("```text\n{}\n```\n", output.join("\n").trim_end());
        commands.push(command.to_owned());
    }
    (renewed, commands)
}

#[test]
fn the_document_shows_the_help_as_it_is() {
    let text = fs::read_to_string(document()).unwrap();
    let (renewed, commands) = renewed(&text);
    if std::env::var_os("RAIDFABRIC_BLESS").is_some() {
        fs::write(document(), &renewed).unwrap();
        return;
    }
    for (line, (found, right)) in text.lines().zip(renewed.lines()).enumerate() {
        assert_eq!(found, right, "docs/commands.md:{}: see RAIDFABRIC_BLESS", line + 1);
    }
    assert!(text == renewed, "docs/commands.md ends elsewhere: see RAIDFABRIC_BLESS");
    for command in [
        "",
        " serve",
        " check",
        " status",
        " wait",
        " array create",
        " array assemble",
        " array examine",
        " array stop",
        " array add",
        " array fail",
        " array remove",
        " array check",
        " array repair",
        " drive list",
        " drive examine",
        " drive wipe",
        " bench",
        " schema",
        " demo",
    ] {
        let wanted = format!("raidfabric{command} --help");
        assert!(commands.contains(&wanted), "docs/commands.md does not show {wanted}");
    }
}

/// What is hidden from the list of commands is told all the same, and every help has an example.
#[test]
fn every_help_has_an_example() {
    for command in [
        "serve",
        "check",
        "status",
        "wait",
        "array",
        "array create",
        "array assemble",
        "array examine",
        "array stop",
        "array add",
        "array fail",
        "array remove",
        "array check",
        "array repair",
        "drive",
        "drive list",
        "drive examine",
        "drive wipe",
        "bench",
        "schema",
        "demo",
        "completions",
        "man",
    ] {
        let mut arguments: Vec<_> = command.split(' ').collect();
        arguments.push("--help");
        let help = run(&arguments);
        let example = format!("raidfabric {command}");
        let after = help.succeeds().split("Example").nth(1);
        assert!(after.is_some_and(|after| after.contains(&example)), "{command}: {}", help.out);
    }
    let text = fs::read_to_string(document()).unwrap();
    for hidden in ["raidfabric completions", "raidfabric man"] {
        assert!(text.contains(hidden), "docs/commands.md does not tell of {hidden}");
    }
}

#[test]
fn completions_and_manual_pages_are_made_from_the_same_definitions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(script.succeeds().contains("destroy-data"), "{shell}");
    }
    assert!(run(&["completions", "tcl"]).fails(2).contains("bash"));
    let folder = folder();
    let pages = folder.path().join("man1");
    run(&["man", pages.to_str().unwrap()]).succeeds();
    for page in ["raidfabric.1", "raidfabric-serve.1", "raidfabric-bench.1"] {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    let text = fs::read_to_string(pages.join("raidfabric-array-create.1")).unwrap();
    assert!(text.contains("overwrite"), "{text}");
}

#[test]
fn wrong_usage_is_told_and_has_code_2() {
    for (arguments, lesson) in [
        (&["sevre"][..], "serve"),
        (&["serve"], "<FILE>"),
        (&["array"], "create"),
        (&["serve", "/nowhere/fabric.yaml"], "there is no such file"),
        (&["array", "create", "/nowhere/fabric.yaml"], "there is no such file"),
    ] {
        let run = run(arguments);
        assert!(run.fails(2).contains(lesson), "{arguments:?}: {run:?}");
    }
}

/// `cargo run --release -- demo`, the first command of the README, did not know which of the
/// workspace's programs was meant.
#[test]
fn cargo_knows_which_program_to_run() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let named: Vec<_> = packages.iter().filter_map(|one| one["default_run"].as_str()).collect();
    assert_eq!(named, ["raidfabric"]);
}
