//! A daemon and the commands that ask it: through its socket, at the place that its configuration
//! says.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{Run, command, configuration, drive, folder, run};

/// A daemon; it is killed with the test.
pub struct Daemon {
    child: Child,
    pub socket: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    /// Serves a configuration, of which the port is chosen by the kernel.
    pub fn start(config: &str, socket: &Path) -> Self {
        let text = fs::read_to_string(config).unwrap();
        fs::write(config, text.replace("127.0.0.1:4420", "127.0.0.1:0")).unwrap();
        let mut child = command(&["serve", config]).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        if !out.any(|line| line.unwrap().starts_with("serving")) {
            panic!("{:?}", child.wait_with_output());
        }
        Self { child, socket: socket.to_owned() }
    }

    /// Runs a command that asks this daemon.
    pub fn ask(&self, arguments: &[&str]) -> Run {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--socket", self.socket.to_str().unwrap()]);
        run(&arguments)
    }

    /// Its state.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.ask(&["status", "--output", "json"]).out).unwrap()
    }

    /// Ends it without giving it a chance.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as an operator does.
    pub fn stop(mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_daemon_tells_how_its_arrays_are() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    let socket = folder.path().join("state/control.sock");
    let daemon = Daemon::start(&config, &socket);
    let status = daemon.ask(&["status"]);
    let out = status.succeeds();
    assert!(out.starts_with("array fast: healthy\n"), "{out}");
    for part in ["raid1, 2 members, ", "can lose 1 more", "nqn.2026-11.org.example:fast", "in sync"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let json = daemon.status();
    assert_eq!(json["schema"], "raidfabric.status/1");
    assert_eq!(json["arrays"][0]["members"][1]["drive"], drives[1].to_str().unwrap());
    assert_eq!(json["daemon"]["connections"], 0);
    let same = daemon.ask(&["array", "status", "fast", "--problems"]);
    assert_eq!(same.succeeds(), "nothing is wrong\n");
    daemon.ask(&["wait", "--for", "healthy", "--timeout", "1s"]).succeeds();

    let none = daemon.ask(&["status", "slow"]);
    assert!(none.fails(4).contains("there is no array slow; there are fast"), "{none:?}");
    assert!(daemon.ask(&["wait", "slow", "--for", "idle"]).fails(2).contains("no array slow"));
    daemon.ask(&["status", "--output", "xml"]).fails(4);
    daemon.ask(&["wait", "--for", "ever"]).fails(2);

    // The variable names it as well as the option.
    let output = command(&["status"]).env("RAIDFABRIC_SOCKET", &socket).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    daemon.stop();
    assert!(!socket.exists(), "a socket goes with its daemon");
    let gone = run(&["wait", "--for", "idle", "--socket", socket.to_str().unwrap()]);
    assert!(gone.fails(2).contains("there is no such socket; is the daemon running?"), "{gone:?}");
}

/// A second daemon with the same state directory took the first one's socket away.
#[test]
fn a_living_daemon_keeps_its_socket_and_a_killed_one_does_not() {
    let folder = folder();
    let drives = ["a", "b", "c", "d"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("one", "raid1", &drives[..2])]);
    let socket = folder.path().join("state/control.sock");
    let daemon = Daemon::start(&config, &socket);
    let other = configuration(folder.path(), &[("two", "raid1", &drives[2..])]);
    let text = fs::read_to_string(&other).unwrap();
    fs::write(&other, text.replace("127.0.0.1:4420", "127.0.0.1:0")).unwrap();
    let second = run(&["serve", &other]);
    let err = second.fails(2);
    assert!(err.contains("is the control socket of a daemon that is running"), "{err}");
    assert!(err.contains("state_dir") && !err.contains("created"), "{err}");
    assert!(daemon.ask(&["status"]).succeeds().contains("array one"));
    daemon.kill();
    assert!(socket.exists());
    let left = run(&["status", "--socket", socket.to_str().unwrap()]);
    assert!(left.fails(4).contains("no daemon listens there any more"), "{left:?}");
    let daemon = Daemon::start(&other, &socket);
    assert!(daemon.ask(&["status"]).succeeds().contains("array two"));
}

/// Whoever is served only from memory leaves nothing behind, unless it is asked for.
#[test]
fn memory_has_a_socket_only_if_it_is_asked_for() {
    let folder = folder();
    let socket = folder.path().join("run/control.sock");
    let file = folder.path().join("fabric.yaml");
    let text = format!(
        "arrays:\n  - {{ name: m, level: raid1, members: [\"memory:16MiB\", \"memory:16MiB\"] }}\n\
         subsystems:\n  - {{ nqn: \"nqn.2026-11.org.example:m\", hosts: any, namespaces: [{{ nsid: 1, \
         array: m }}] }}\nlisten: [\"127.0.0.1:0\"]\nstate_dir: {:?}\ncontrol: {{ socket: {socket:?} }}\n",
        folder.path().join("state")
    );
    fs::write(&file, text).unwrap();
    let daemon = Daemon::start(file.to_str().unwrap(), &socket);
    assert!(daemon.ask(&["status"]).succeeds().starts_with("array m: healthy\n"));
    assert!(!folder.path().join("state").exists());
}
