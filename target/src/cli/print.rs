//! Printing: what goes to standard output, what to standard error, and what a reader who has gone
//! away means.
//!
//! The standard library's macros panic when nobody reads any more (`raidfabric schema | head -1`).
//! Here that ends a command quietly, and a daemon goes on without.

use std::fmt::Display;
use std::io::{self, Write};

use super::Failure;

/// Prints to standard output, with a line's end.
///
/// # Errors
/// [`Failure::Unread`] if nobody reads, [`Failure::Failed`] if it cannot be written (a full disk).
pub(super) fn line(text: impl Display) -> Result<(), Failure> {
    write(&mut io::stdout().lock(), format_args!("{text}\n"))
}

/// Prints to standard output as it is.
///
/// # Errors
/// As [`line`].
pub(super) fn text(text: impl Display) -> Result<(), Failure> {
    write(&mut io::stdout().lock(), format_args!("{text}"))
}

/// Tells a person something on standard error, if anybody is there to read it.
pub(super) fn note(text: impl Display) {
    // Where errors are told there is nobody left to tell that it failed.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn write(out: &mut impl Write, text: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    out.write_fmt(text).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Failed(format!("cannot write the output: {error}")),
    })
}

/// A table without lines between its cells, for terminals and scripts alike: the columns after the
/// first hold numbers if `numbers`, and are aligned to the right.
pub(super) fn table(header: &[&str], numbers: bool) -> comfy_table::Table {
    use comfy_table::{CellAlignment, Table, presets};
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers && index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Refusing(io::ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_gone_reader_is_no_failure_and_a_full_disk_is() {
        let print = |kind| write(&mut Refusing(kind), format_args!("x"));
        assert!(matches!(print(io::ErrorKind::BrokenPipe), Err(Failure::Unread)));
        assert!(matches!(print(io::ErrorKind::StorageFull), Err(Failure::Failed(_))));
    }

    #[test]
    fn tables_are_plain_columns() {
        let mut table = table(&["", "IOPS"], true);
        table.add_row(["read", "7"]);
        assert_eq!(table.trim_fmt(), "      IOPS\nread     7");
    }
}
