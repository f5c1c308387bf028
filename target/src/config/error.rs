//! What is wrong with a configuration file, for people: place, fault and cure.

use std::fmt;
use std::path::{Path, PathBuf};

use super::source::Position;

/// One thing that is wrong with the file, or questionable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands.
    pub position: Position,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub help: Option<String>,
}

impl Problem {
    pub(super) fn new(position: Position, message: impl Into<String>) -> Problem {
        Problem { position, message: message.into(), help: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }
}

/// The problems of one file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The text, for showing the lines concerned.
    text: String,
    /// The problems.
    pub list: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(file: &Path, text: &str, mut list: Vec<Problem>) -> Problems {
        list.sort_by_key(|problem| problem.position);
        list.dedup();
        Problems { file: file.to_owned(), text: text.to_owned(), list }
    }

    fn fmt_as(&self, f: &mut fmt::Formatter<'_>, severity: &str) -> fmt::Result {
        for (i, problem) in self.list.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            self.fmt_one(f, severity, problem)?;
        }
        Ok(())
    }

    fn fmt_one(
        &self,
        f: &mut fmt::Formatter<'_>,
        severity: &str,
        problem: &Problem,
    ) -> fmt::Result {
        let Position { line, column } = problem.position;
        write!(f, "{}", self.file.display())?;
        if line > 0 {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {severity}: {}", problem.message)?;
        let shown = usize::try_from(line).ok().and_then(|line| line.checked_sub(1));
        if let Some(text) = shown.and_then(|index| self.text.lines().nth(index)) {
            // A tab stays a tab, so that the mark stands under its character.
            let indent: String = text
                .chars()
                .take(usize::try_from(column).unwrap_or(1).saturating_sub(1))
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            write!(f, "\n{line:>5} | {text}\n      | {indent}^")?;
        }
        if let Some(help) = &problem.help {
            write!(f, "\n      = {help}")?;
        }
        Ok(())
    }
}

/// Why a configuration cannot be used. Its text is meant for the operator, and a
/// program that meets it ends with exit code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigErrors {
    /// The file could not be read at all.
    #[error("{}: {reason}", file.display())]
    Unreadable {
        /// The file, as it was named.
        file: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The file was read and is wrong in these places.
    #[error("{}", AsErrors(.0))]
    Wrong(Problems),
}

impl ConfigErrors {
    /// The single problems; empty if the file could not be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            ConfigErrors::Unreadable { .. } => &[],
            ConfigErrors::Wrong(problems) => &problems.list,
        }
    }
}

struct AsErrors<'a>(&'a Problems);

impl fmt::Display for AsErrors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(f, "error")
    }
}

/// What is allowed but questionable; empty if there is nothing to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warnings(pub(super) Problems);

impl Warnings {
    /// The single warnings.
    pub fn list(&self) -> &[Problem] {
        &self.0.list
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.0.list.is_empty()
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(f, "warning")
    }
}

/// The candidate that was probably meant.
pub(super) fn closest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            // `10` for `raid10` is as good as a transposed letter.
            let part = !lower.is_empty() && candidate.ends_with(&lower);
            let score = strsim::jaro_winkler(&lower, &candidate.to_lowercase());
            (if part { score.max(0.9) } else { score }, candidate)
        })
        .filter(|(score, _)| *score >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_word() {
        let keys = ["members", "level", "chunk", "name", "uuid"];
        assert_eq!(closest("chunks", keys), Some("chunk"));
        assert_eq!(closest("chunk_size", keys), Some("chunk"));
        assert_eq!(closest("drives", keys), None);
        assert_eq!(closest("10", ["raid0", "raid1", "raid10"]), Some("raid10"));
        assert_eq!(closest("", keys), None);
    }

    #[test]
    fn a_problem_shows_its_line() {
        let problem = Problem::new(Position { line: 2, column: 3 }, "wrong").help("do right");
        let errors =
            ConfigErrors::Wrong(Problems::new(Path::new("f"), "a: 1\n\tb: 2\n", vec![problem]));
        assert_eq!(
            errors.to_string(),
            "f:2:3: error: wrong\n    2 | \tb: 2\n      | \t ^\n      = do right"
        );
    }
}
