//! Which cores serve data.
//!
//! [`choose`] is a pure function over what the process may use: its affinity mask,
//! its control group's cpuset, and its control group's CPU quota. [`Available::read`]
//! finds these out, for control groups of version 2 and of version 1.
//!
//! The rule for `auto`: affinity ∩ cpuset; no more cores than the quota pays for,
//! since a data core that is throttled in the middle of its turn stalls all its
//! connections; and where that leaves more than two, the first one stays with the
//! system and with the daemon's own control thread (the first, because that is where
//! Linux puts most interrupts by default).

use std::fs;
use std::path::{Path, PathBuf};

use super::types::CoreSelection;

/// What the process may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Available {
    /// Cores of the affinity mask, ascending.
    pub affinity: Vec<usize>,
    /// Cores of the control group's cpuset, if it has one.
    pub cpuset: Option<Vec<usize>>,
    /// CPU time per time that the control group may use: 1.5 is one and a half cores.
    pub quota: Option<f64>,
}

/// Why no core map can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoresError {
    /// A core is listed twice.
    #[error("core {0} is listed twice in `cores`; remove one of the two")]
    Duplicate(usize),
    /// A core is listed that the process may not use.
    #[error("core {core} of `cores` is not available to this process; available: {available}")]
    NotAvailable {
        /// The core.
        core: usize,
        /// Those that are, as `0-3,6`.
        available: String,
    },
    /// Nothing is left.
    #[error(
        "no core is available: the affinity mask ({affinity}) and the control group's cpuset \
         ({cpuset}) have none in common; look at taskset and at AllowedCPUs or cpuset.cpus"
    )]
    None {
        /// The affinity mask.
        affinity: String,
        /// The cpuset.
        cpuset: String,
    },
}

/// The data cores, ascending for `auto`, in the file's order for a list.
///
/// # Errors
///
/// See [`CoresError`].
pub fn choose(selection: &CoreSelection, available: &Available) -> Result<Vec<usize>, CoresError> {
    let usable = available.usable();
    match selection {
        CoreSelection::List(list) => {
            for (i, core) in list.iter().enumerate() {
                if list[..i].contains(core) {
                    return Err(CoresError::Duplicate(*core));
                }
                if !usable.contains(core) {
                    return Err(CoresError::NotAvailable {
                        core: *core,
                        available: ranges(&usable),
                    });
                }
            }
            Ok(list.clone())
        }
        CoreSelection::Auto => {
            if usable.is_empty() {
                let cpuset = available.cpuset.as_deref().map_or("none".to_owned(), ranges);
                return Err(CoresError::None { affinity: ranges(&available.affinity), cpuset });
            }
            let paid =
                available.quota.map_or(usable.len(), |quota| (quota.floor() as usize).max(1));
            let count = usable.len().min(paid);
            let data = if count > 2 { count - 1 } else { count };
            // The last ones: the first stay with the system.
            Ok(usable[usable.len() - data..].to_vec())
        }
    }
}

/// The core map in words, for `check` and for the log.
pub fn describe(selection: &CoreSelection, available: &Available, cores: &[usize]) -> String {
    let mut text = format!("data cores {} ", ranges(cores));
    text += match selection {
        CoreSelection::List(_) => "(as listed;",
        CoreSelection::Auto => "(chosen;",
    };
    text += &format!(" affinity {}", ranges(&available.affinity));
    if let Some(cpuset) = &available.cpuset {
        text += &format!(", cpuset {}", ranges(cpuset));
    }
    if let Some(quota) = available.quota {
        text += &format!(", quota {quota:.2} cores");
        if cores.len() as f64 > quota.max(1.0) {
            text += ", which is less than the data cores: expect stalls";
        }
    }
    let usable = available.usable();
    let rest: Vec<usize> = usable.into_iter().filter(|core| !cores.contains(core)).collect();
    match rest.as_slice() {
        [] => text + "; none left to the system)",
        rest => text + &format!("; {} left to the system)", ranges(rest)),
    }
}

impl Available {
    /// Affinity ∩ cpuset.
    fn usable(&self) -> Vec<usize> {
        let in_cpuset = |core: &usize| self.cpuset.as_ref().is_none_or(|set| set.contains(core));
        self.affinity.iter().copied().filter(in_cpuset).collect()
    }

    /// What this process may use now.
    ///
    /// # Errors
    ///
    /// The kernel does not tell the affinity mask. Control groups that cannot be read
    /// count as none.
    pub fn read() -> std::io::Result<Available> {
        let mask = rustix::thread::sched_getaffinity(None)?;
        let affinity =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| mask.is_set(*core)).collect();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let (cpuset, quota) = read_groups(&membership, Path::new("/sys/fs/cgroup"));
        Ok(Available { affinity, cpuset, quota })
    }
}

/// cpuset and quota from the text of /proc/self/cgroup and the mounted hierarchies.
fn read_groups(membership: &str, mount: &Path) -> (Option<Vec<usize>>, Option<f64>) {
    let (mut cpuset, mut quota) = (None, None);
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if controllers.is_empty() {
            // Version 2: one hierarchy for all controllers. Beside version 1 it is
            // mounted at "unified" and has no controllers that matter here.
            let chain = chain(mount, group);
            cpuset = cpuset.or_else(|| first_list(&chain, &["cpuset.cpus.effective"]));
            quota = smaller(quota, smallest_quota(&chain, quota_v2));
            continue;
        }
        for controller in controllers.split(',') {
            // The mount may be named after all its controllers, or after one.
            let mounted = [mount.join(controllers), mount.join(controller)];
            let Some(base) = mounted.iter().find(|path| path.is_dir()) else { continue };
            let chain = chain(base, group);
            match controller {
                "cpuset" => {
                    let names = ["cpuset.effective_cpus", "cpuset.cpus"];
                    cpuset = cpuset.or_else(|| first_list(&chain, &names));
                }
                "cpu" => quota = smaller(quota, smallest_quota(&chain, quota_v1)),
                _ => {}
            }
        }
    }
    (cpuset, quota)
}

/// The group's folder and those above it, up to the mount. In a container the path
/// may be the host's, and the mount the container's own group: then only the mount
/// exists.
fn chain(mount: &Path, group: &str) -> Vec<PathBuf> {
    let relative = Path::new(group.trim_start_matches('/'));
    let outside = relative.components().any(|part| part == std::path::Component::ParentDir);
    let mut chain: Vec<PathBuf> = Vec::new();
    if !outside {
        chain.extend(relative.ancestors().map(|part| mount.join(part)).filter(|p| p.is_dir()));
    }
    if chain.last().map(PathBuf::as_path) != Some(mount) {
        chain.push(mount.to_owned());
    }
    chain
}

/// The list of cores in the first of these files that has one.
fn first_list(chain: &[PathBuf], names: &[&str]) -> Option<Vec<usize>> {
    chain.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).find_map(|path| {
        let list = parse_list(fs::read_to_string(path).ok()?.trim())?;
        (!list.is_empty()).then_some(list)
    })
}

/// Every group above has a say: the smallest quota counts.
fn smallest_quota(chain: &[PathBuf], read: fn(&Path) -> Option<f64>) -> Option<f64> {
    chain.iter().filter_map(|folder| read(folder)).reduce(f64::min)
}

fn smaller(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::min)
}

/// `cpu.max`: "max 100000" or "150000 100000".
fn quota_v2(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

/// `cpu.cfs_quota_us` (−1 for none) and `cpu.cfs_period_us`.
fn quota_v1(folder: &Path) -> Option<f64> {
    let quota = fs::read_to_string(folder.join("cpu.cfs_quota_us")).ok()?;
    let period = fs::read_to_string(folder.join("cpu.cfs_period_us")).ok()?;
    ratio(quota.trim(), period.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let quota = quota.parse::<u64>().ok().filter(|quota| *quota > 0)?;
    let period = period.parse::<u64>().ok().filter(|period| *period > 0)?;
    Some(quota as f64 / period as f64)
}

/// `0-3,6` as numbers, ascending; `None` if it is not such a list.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().ok()?;
        let last: usize = last.trim().parse().ok()?;
        if last > 65_535 {
            return None;
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores)
}

/// Numbers as `0-3,6`.
fn ranges(cores: &[usize]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for core in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let text: Vec<String> =
        runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    if text.is_empty() { "none".to_owned() } else { text.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn available(affinity: &[usize]) -> Available {
        Available { affinity: affinity.to_vec(), cpuset: None, quota: None }
    }

    #[test]
    fn one_is_left_to_the_system_where_there_are_more_than_two() {
        for (affinity, cores) in [
            (&[0usize][..], &[0usize][..]),
            (&[0, 1], &[0, 1]),
            (&[0, 1, 2], &[1, 2]),
            (&[0, 1, 2, 3], &[1, 2, 3]),
            (&[4, 6, 8], &[6, 8]),
        ] {
            assert_eq!(choose(&CoreSelection::Auto, &available(affinity)), Ok(cores.to_vec()));
        }
    }

    #[test]
    fn cpuset_and_quota_narrow_it() {
        let mut limits = available(&[0, 1, 2, 3, 4, 5, 6, 7]);
        limits.cpuset = Some(vec![4, 5, 6, 7, 8, 9]);
        assert_eq!(choose(&CoreSelection::Auto, &limits), Ok(vec![5, 6, 7]));
        for (quota, cores) in [
            (0.2, vec![7]),
            (1.0, vec![7]),
            (2.9, vec![6, 7]),
            (3.0, vec![6, 7]),
            (4.0, vec![5, 6, 7]),
            (64.0, vec![5, 6, 7]),
        ] {
            limits.quota = Some(quota);
            assert_eq!(choose(&CoreSelection::Auto, &limits), Ok(cores), "{quota}");
        }
    }

    #[test]
    fn a_list_is_taken_as_it_is_or_refused() {
        let mut limits = available(&[0, 1, 2, 3]);
        let list = |cores: &[usize]| CoreSelection::List(cores.to_vec());
        assert_eq!(choose(&list(&[3, 0]), &limits), Ok(vec![3, 0]));
        assert_eq!(choose(&list(&[1, 2, 1]), &limits), Err(CoresError::Duplicate(1)));
        limits.cpuset = Some(vec![0, 1]);
        let error = choose(&list(&[1, 2]), &limits).expect_err("not in the cpuset");
        assert!(error.to_string().contains("core 2"), "{error}");
        assert!(error.to_string().contains("available: 0-1"), "{error}");
    }

    #[test]
    fn nothing_left_is_an_error() {
        let mut limits = available(&[0, 1]);
        limits.cpuset = Some(vec![2, 3]);
        let error = choose(&CoreSelection::Auto, &limits).expect_err("nothing in common");
        assert!(error.to_string().contains("0-1") && error.to_string().contains("2-3"), "{error}");
    }

    #[test]
    fn the_map_in_words() {
        let mut limits = available(&[0, 1, 2, 3]);
        limits.quota = Some(2.5);
        let cores = choose(&CoreSelection::Auto, &limits).expect("cores");
        assert_eq!(
            describe(&CoreSelection::Auto, &limits, &cores),
            "data cores 2-3 (chosen; affinity 0-3, quota 2.50 cores; 0-1 left to the system)"
        );
        let list = CoreSelection::List(vec![0, 1, 2, 3]);
        let text = describe(&list, &limits, &[0, 1, 2, 3]);
        assert!(text.contains("expect stalls") && text.contains("none left"), "{text}");
    }

    #[test]
    fn lists_of_cores() {
        assert_eq!(parse_list("0-2,8,5-6"), Some(vec![0, 1, 2, 5, 6, 8]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("0-x"), None);
        assert_eq!(parse_list("0-99999999"), None);
        assert_eq!(ranges(&[6, 0, 1, 2]), "0-2,6");
        assert_eq!(ranges(&[]), "none");
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn version_2_and_the_smallest_quota_above() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "cpuset.cpus.effective", "0-7\n");
        write(root.path(), "a/cpu.max", "150000 100000\n");
        write(root.path(), "a/cpuset.cpus.effective", "0-3\n");
        write(root.path(), "a/b/cpu.max", "max 100000\n");
        let found = read_groups("0::/a/b\n", root.path());
        assert_eq!(found, (Some(vec![0, 1, 2, 3]), Some(1.5)));
    }

    #[test]
    fn version_1_with_the_hosts_path_in_a_container() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "cpuset/cpuset.cpus", "2-3\n");
        write(root.path(), "cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
        write(root.path(), "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        let membership = "5:cpu,cpuacct:/docker/abc\n4:cpuset:/docker/abc\n1:name=systemd:/x\n";
        assert_eq!(read_groups(membership, root.path()), (Some(vec![2, 3]), Some(0.5)));
        write(root.path(), "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        assert_eq!(read_groups(membership, root.path()), (Some(vec![2, 3]), None));
    }

    #[test]
    fn no_control_groups_or_strange_ones() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(read_groups("", root.path()), (None, None));
        write(root.path(), "cpu.max", "0 0\n");
        assert_eq!(read_groups("0::/../../other\nrubbish\n", root.path()), (None, None));
    }

    #[test]
    fn this_process_has_cores() {
        let available = Available::read().expect("an affinity mask");
        let cores = choose(&CoreSelection::Auto, &available).expect("cores");
        assert!(!cores.is_empty() && cores.iter().all(|core| available.affinity.contains(core)));
    }
}
