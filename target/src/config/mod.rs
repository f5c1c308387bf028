//! The configuration file: reading it, judging it, and saying what is wrong with it.
//!
//! The way of a file:
//!
//! 1. [`load`] reads the text (bounded) and gives it to `serde_yaml`, which fills the
//!    structs of `raw`.
//! 2. If that fails, `structure` compares the file with the JSON Schema of the same
//!    structs and reports every key and value that does not fit, with what would be
//!    right; only a fault of YAML's own syntax is reported in `serde_yaml`'s words.
//! 3. If it succeeds, `check` judges the meaning and builds the typed [`Config`],
//!    collecting all mistakes.
//!
//! Positions come from `source`, which reads the text a second time with
//! `serde-saphyr`: `serde_yaml` knows where a syntax error is, but forgets where a
//! value stood once it has been read.
//!
//! Nothing outside this module knows YAML. Nothing in it opens a drive; [`drives`]
//! alone looks at the file system, to expand patterns and to find one drive under
//! two names.

mod check;
pub mod cores;
pub mod drives;
mod error;
pub mod memory;
mod raw;
mod source;
mod structure;
mod types;
mod units;

#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::Path;

pub use error::{ConfigErrors, Problem, Problems, Warnings};
pub use source::Position;
pub use types::{
    Array, Config, Consistency, CoreSelection, Hosts, Level, Limits, Member, Memory, Namespace,
    ResyncRates, Ring, Subsystem,
};
pub use units::{duration as parse_duration, format_bytes, parse_size};

/// The largest file that is read; a configuration of a thousand namespaces is a
/// tenth of this.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where the daemon keeps what must outlive it, unless the file says otherwise.
const DEFAULT_STATE_DIR: &str = "/var/lib/raidfabric";

/// The control socket of a daemon whose file does not say where it is.
pub fn default_control_socket() -> std::path::PathBuf {
    Path::new(DEFAULT_STATE_DIR).join(check::SOCKET_NAME)
}

/// A configuration that can be used, and what its author should know about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is allowed but questionable.
    pub warnings: Warnings,
    /// The file as it was, so that later errors can still name its lines.
    file: std::path::PathBuf,
    text: String,
}

/// Reads and judges a configuration file. Nothing else is touched.
///
/// # Errors
///
/// The file cannot be read, is not YAML, or says something that cannot be meant; all
/// mistakes of a file are reported together.
pub fn load(path: &Path) -> Result<Loaded, ConfigErrors> {
    let unreadable = |reason: String| ConfigErrors::Unreadable { file: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|error| {
        unreadable(match error.kind() {
            std::io::ErrorKind::NotFound => {
                "there is no such file; `raidfabric schema` and the examples show what it holds"
                    .to_owned()
            }
            _ => format!("cannot be opened: {error}"),
        })
    })?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(unreadable(format!(
            "is larger than {}, so that it is hardly a configuration",
            format_bytes(MAX_FILE_BYTES)
        )));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| unreadable("is not text (UTF-8), so that it is hardly YAML".to_owned()))?;
    parse(path, &text)
}

/// Judges the text of a configuration; `path` is only named in errors.
///
/// # Errors
///
/// As [`load`].
pub fn parse(path: &Path, text: &str) -> Result<Loaded, ConfigErrors> {
    // Some editors begin a file with this mark of UTF-8, which one of the two readers takes for
    // a part of the first key.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let wrong = |list| ConfigErrors::Wrong(Problems::new(path, text, list));
    let Some(tree) = source::parse(text) else {
        // Not YAML. As a mere value it is read to the point where it stops being
        // YAML, and not only to the first value of the wrong kind.
        let result = serde_yaml::from_str::<serde_yaml::Value>(text).map(|_| ());
        let result = result.and_then(|()| serde_yaml::from_str::<raw::File>(text).map(|_| ()));
        return Err(wrong(vec![
            result.err().map_or_else(no_places, |error| syntax_problem(text, &error)),
        ]));
    };
    let file: raw::File = serde_yaml::from_str(text).map_err(|error| {
        let mut problems = structure::check(&raw::schema(), &tree);
        if problems.is_empty() {
            problems.push(syntax_problem(text, &error));
        }
        wrong(problems)
    })?;
    let mut findings = check::Findings::new(&tree);
    let config = check::check(&file, &mut findings);
    if !findings.errors.is_empty() {
        return Err(wrong(findings.errors));
    }
    let warnings = Warnings(Problems::new(path, text, findings.warnings));
    Ok(Loaded { config, warnings, file: path.to_owned(), text: text.to_owned() })
}

/// The JSON Schema (draft-07) of the file, as text, for editors.
pub fn schema_json() -> String {
    // A `Value` always has a text.
    serde_json::to_string_pretty(&raw::schema()).unwrap_or_default()
}

/// `serde_yaml`'s own words, without the position that is given beside them.
fn syntax_problem(text: &str, error: &serde_yaml::Error) -> Problem {
    let position = error.location().map_or(Position::default(), |location| Position {
        line: location.line() as u64,
        column: location.column() as u64,
    });
    let words = error.to_string();
    let message = match words.rsplit_once(" at line ") {
        Some((message, _)) => message,
        None => words.as_str(),
    };
    let at = error.location().and_then(|location| text.get(location.index()..));
    let help = if message.contains("more than one document") {
        "a file holds one configuration: remove the line `---` and what is before or behind it"
    } else if at.is_some_and(|rest| rest.starts_with('\t')) {
        "here is a tab, which YAML does not take for indentation; use spaces"
    } else {
        "this is where YAML itself could not be read; look for indentation, colons and quotes just before it"
    };
    Problem::new(position, message).help(help)
}

/// The two readers disagree: one takes the text for YAML, the other does not.
fn no_places() -> Problem {
    Problem::new(Position::default(), "this text is YAML only to some readers")
        .help("write it more plainly: no tags, anchors or merge keys are needed")
}
