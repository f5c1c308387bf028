//! Showing what is about to be destroyed, and hearing a person say so.
//!
//! Nothing is ever asked where there is no terminal: what runs there is a script, which must have
//! said `--yes`.

use std::io::{self, BufRead, IsTerminal, Write};

use raidfabric_raid::assemble::Description;

use super::{Failure, print};
use crate::config::format_bytes;

/// Something for which drives are destroyed.
pub(super) struct Doom {
    /// What for, as in "To create array fast".
    pub(super) purpose: String,
    /// The drives.
    pub(super) drives: Vec<Description>,
    /// Whether options have said yes already.
    pub(super) yes: bool,
    /// The options that say it: "add --yes".
    pub(super) say_yes: &'static str,
}

/// Shows what the drives hold, and asks for their names to be typed.
///
/// # Errors
/// [`Failure::Refused`] if it was not confirmed.
pub(super) fn confirm(doomed: &[Doom]) -> Result<(), Failure> {
    let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    obtain(doomed, terminal, &mut io::stdin().lock(), &mut io::stderr().lock())
}

fn obtain(
    doomed: &[Doom],
    terminal: bool,
    answers: &mut impl BufRead,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let unreadable = |error: io::Error| Failure::Refused(format!("cannot ask: {error}"));
    for Doom { purpose, drives, .. } in doomed {
        let plural = if drives.len() == 1 { "this drive" } else { "these drives" };
        let table = table(drives);
        writeln!(out, "{purpose}, everything on {plural} is destroyed:\n{table}")
            .map_err(unreadable)?;
    }
    let asked = || doomed.iter().filter(|doom| !doom.yes);
    if let Some(doom) = asked().next().filter(|_| !terminal) {
        return Err(Failure::Refused(format!(
            "there is no terminal to ask on, so nothing was touched. If all that may be \
             destroyed, {}",
            doom.say_yes
        )));
    }
    for drive in asked().flat_map(|doom| &doom.drives) {
        let name = short_name(drive);
        write!(out, "Type {name} to destroy what it holds: ")
            .and_then(|()| out.flush())
            .map_err(unreadable)?;
        let mut answer = String::new();
        answers.read_line(&mut answer).map_err(unreadable)?;
        let answer = answer.trim();
        if answer != name && answer != drive.identity.name() {
            return Err(Failure::Refused(format!(
                "that is not the name of {name}; nothing was touched"
            )));
        }
    }
    Ok(())
}

/// The last part of the name that does not move.
fn short_name(drive: &Description) -> String {
    let name = drive.identity.name();
    name.rsplit('/').next().map_or_else(|| name.clone(), str::to_owned)
}

pub(super) fn table(drives: &[Description]) -> String {
    let mut table = print::table(&["drive", "size", "serial", "model", "holds now"], false);
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for drive in drives {
        let identity = &drive.identity;
        table.add_row([
            identity.name(),
            format_bytes(drive.size_bytes),
            known(&identity.serial),
            known(&identity.model),
            drive.contents.to_string(),
        ]);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use raidfabric_raid::device::signature::Contents;
    use raidfabric_raid::device::{Identity, Kind};

    fn drive(name: &str, serial: Option<&str>) -> Description {
        Description {
            identity: Identity {
                path: "/dev/nvme0n1".into(),
                kind: Kind::Block { major: 259, minor: 0 },
                by_id: Some(format!("/dev/disk/by-id/{name}").into()),
                kernel_name: Some("nvme0n1".into()),
                partition_of: None,
                serial: serial.map(str::to_owned),
                model: Some("Example 980".into()),
            },
            size_bytes: 1 << 40,
            contents: Contents::Foreign { what: "an XFS file system".into(), offset_bytes: 0 },
        }
    }

    fn ask(yes: bool, terminal: bool, answers: &str) -> (Result<(), Failure>, String) {
        let drives = vec![drive("nvme-A", Some("S1")), drive("nvme-B", None)];
        let doomed =
            [Doom { purpose: "To create array fast".into(), drives, yes, say_yes: "add --yes" }];
        let mut out = Vec::new();
        let result = obtain(&doomed, terminal, &mut answers.as_bytes(), &mut out);
        (result, String::from_utf8(out).unwrap())
    }

    #[test]
    fn each_name_has_to_be_typed() {
        let (result, text) = ask(false, true, "nvme-A\n/dev/disk/by-id/nvme-B\n");
        assert!(result.is_ok(), "{result:?}");
        assert!(text.contains("To create array fast, everything on these drives"), "{text}");
        for part in ["1 TiB", "S1", "Example 980", "an XFS file system", "Type nvme-B to"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for answers in ["", "y\n", "nvme-A\n", "nvme-A\nnvme-A\n", "nvme-B\nnvme-A\n", "\n\n"] {
            let (result, _) = ask(false, true, answers);
            assert!(matches!(result, Err(Failure::Refused(_))), "{answers:?}");
        }
    }

    #[test]
    fn nothing_is_asked_without_a_terminal() {
        let (result, text) = ask(false, false, "nvme-A\nnvme-B\n");
        let Err(Failure::Refused(why)) = result else { panic!("{result:?}") };
        assert!(why.contains("--yes") && text.contains("an XFS file system"), "{why} {text}");
        assert!(!text.contains("Type"), "{text}");
        let (result, text) = ask(true, false, "");
        assert!(result.is_ok() && !text.contains("Type"), "{text}");
    }
}
