//! The form of what a command reads out: text for people, JSON or YAML for programs, all three from
//! the same values.

use clap::ValueEnum;
use serde::Serialize;

use super::{Failure, print};

/// Text for people, or a form for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// For people.
    #[default]
    Text,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// The option `--output`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Output {
    /// Text for people, or the same for programs
    #[arg(long = "output", value_name = "FORM", value_enum, default_value_t)]
    pub(super) form: Form,
}

impl Output {
    /// Prints a value, as `text` for people.
    ///
    /// # Errors
    /// As [`print::text`].
    pub(super) fn print<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.form {
            Form::Text => print::text(text(value)),
            Form::Json => {
                let json = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
                print::line(json)
            }
            Form::Yaml => {
                let yaml = serde_yaml::to_string(value).map_err(Failure::failed)?;
                print::text(yaml)
            }
        }
    }
}
