//! Keeping the host's own md away from drives that we serve.
//!
//! At boot and on every plug event udev runs `mdadm --incremental`, which would assemble
//! our array as it would any. `mdadm.conf` can say that it must not.

use super::identity::Roots;
use crate::metadata::superblock::MdUuid;
use std::fs;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// What to tell the operator if this host would assemble the array by itself; None if
/// it has no such rule, or is told not to already.
#[must_use]
pub fn assembly_advice(array: Uuid) -> Option<String> {
    advice_under(Path::new("/"), &Roots::default(), array)
}

fn advice_under(root: &Path, roots: &Roots, array: Uuid) -> Option<String> {
    let rules = ["usr/lib/udev/rules.d", "lib/udev/rules.d", "etc/udev/rules.d"];
    let rule = "64-md-raid-assembly.rules";
    let udev = rules.iter().any(|dir| {
        let path = root.join(dir).join(rule);
        // An override that is empty, or a link to /dev/null, switches the rule off.
        fs::metadata(&path).is_ok_and(|meta| meta.len() > 0)
    });
    if !udev || is_ignored(root, array) {
        return None;
    }
    let config = config_files(root).into_iter().find(|path| path.exists());
    let config = config.unwrap_or_else(|| root.join("etc/mdadm.conf"));
    let update = if root.join("etc/initramfs-tools").exists() {
        " and run `update-initramfs -u`"
    } else if root.join("etc/dracut.conf").exists() {
        " and run `dracut -f`"
    } else {
        ""
    };
    let running = match running_array(roots, array) {
        Some(name) => format!("It has done so already: stop it with `mdadm --stop /dev/{name}`. "),
        None => String::new(),
    };
    Some(format!(
        "this host's udev would assemble the array with md whenever its drives appear. \
         {running}To keep it from that, add this line to {}{update}:\n{}",
        config.display(),
        ignore_line(array)
    ))
}

/// The line for `mdadm.conf`.
#[must_use]
pub fn ignore_line(array: Uuid) -> String {
    format!("ARRAY <ignore> UUID={}", MdUuid(array))
}

fn config_files(root: &Path) -> Vec<PathBuf> {
    ["etc/mdadm/mdadm.conf", "etc/mdadm.conf"].iter().map(|path| root.join(path)).collect()
}

/// Whether a configuration file tells mdadm to leave the array alone.
fn is_ignored(root: &Path, array: Uuid) -> bool {
    let mut files = config_files(root);
    for dir in ["etc/mdadm/mdadm.conf.d", "etc/mdadm.conf.d"] {
        let entries = fs::read_dir(root.join(dir)).into_iter().flatten().flatten();
        files.extend(
            entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "conf")),
        );
    }
    files
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .any(|text| logical_lines(&text).iter().any(|line| ignores(line, array)))
}

/// A line that begins with white space continues the one before; `#` begins a comment.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        match lines.last_mut() {
            Some(last) if line.starts_with([' ', '\t']) => last.push_str(line),
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

fn ignores(line: &str, array: Uuid) -> bool {
    let mut words = line.split_whitespace();
    let is_array = words.next().is_some_and(|word| word.eq_ignore_ascii_case("array"));
    if !is_array {
        return false;
    }
    let words: Vec<_> = words.collect();
    let ignored = words.contains(&"<ignore>");
    let named = words.iter().any(|word| {
        let (key, value) = word.split_once('=').unwrap_or_default();
        key.eq_ignore_ascii_case("uuid") && MdUuid::parse(value) == Some(array)
    });
    ignored && named
}

/// The md device that runs this array now, by sysfs.
fn running_array(roots: &Roots, array: Uuid) -> Option<String> {
    fs::read_dir(roots.sys.join("block")).ok()?.flatten().find_map(|entry| {
        let uuid = super::identity::read_text(&entry.path().join("md/uuid"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        (MdUuid::parse(&uuid)? == array).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Uuid = Uuid::from_u128(0x3aaa0122_29827cfa_5331ad66_ca767371);

    fn advice(root: &Path) -> Option<String> {
        let roots = Roots { sys: root.join("sys"), proc: root.join("proc"), dev: root.join("dev") };
        advice_under(root, &roots, ARRAY)
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn advises_where_udev_would_assemble() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(advice(dir.path()), None, "no rule, no advice");
        write(dir.path(), "usr/lib/udev/rules.d/64-md-raid-assembly.rules", "rule");
        let text = advice(dir.path()).unwrap();
        assert!(
            text.ends_with("ARRAY <ignore> UUID=3aaa0122:29827cfa:5331ad66:ca767371"),
            "{text}"
        );
        write(
            dir.path(),
            "etc/mdadm/mdadm.conf",
            "HOMEHOST <system>\n# ARRAY <ignore> UUID=3aaa0122:29827cfa:5331ad66:ca767371\n",
        );
        write(dir.path(), "etc/initramfs-tools/initramfs.conf", "");
        let text = advice(dir.path()).unwrap();
        assert!(text.contains("etc/mdadm/mdadm.conf and run `update-initramfs -u`"), "{text}");
    }

    #[test]
    fn is_quiet_once_told() {
        for line in [
            "ARRAY <ignore> UUID=3aaa0122:29827cfa:5331ad66:ca767371\n",
            "array <ignore>\n   uuid=3AAA012229827CFA:5331ad66:ca767371 # ours\n",
        ] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "lib/udev/rules.d/64-md-raid-assembly.rules", "rule");
            write(dir.path(), "etc/mdadm.conf", line);
            assert_eq!(advice(dir.path()), None, "{line}");
        }
        for line in [
            "ARRAY /dev/md0 UUID=3aaa0122:29827cfa:5331ad66:ca767371\n",
            "ARRAY <ignore> UUID=00000000:29827cfa:5331ad66:ca767371\n",
        ] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "lib/udev/rules.d/64-md-raid-assembly.rules", "rule");
            write(dir.path(), "etc/mdadm.conf", line);
            assert!(advice(dir.path()).is_some(), "{line}");
        }
    }

    #[test]
    fn names_the_array_that_runs_already() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "usr/lib/udev/rules.d/64-md-raid-assembly.rules", "rule");
        write(dir.path(), "sys/block/md127/md/uuid", "3aaa0122-2982-7cfa-5331-ad66ca767371\n");
        assert!(advice(dir.path()).unwrap().contains("mdadm --stop /dev/md127"));
    }
}
