//! The program that is ended: by a kill or a signal, at any time, under hosts' commands.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use raidfabric_initiator::{Controller, Volume};
use raidfabric_protocol::fabrics::FabricsCommand;
use raidfabric_protocol::nvme::io::{DSM_RANGES_MAX, DsmAttributes, DsmRange, IoCommand};
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_tests::data::{Random, pattern};
use raidfabric_tests::host::{
    Login, NONE, RawHost, completion, inline_sqe, options, read_sqe, soon, volume,
};
use raidfabric_tests::setup::{NQN, Setup, Target};
use zerocopy::IntoBytes;

use crate::files::{
    BLOCK, FILE_BYTES, blank, check, contents, copies_are_equal, data_offset, fill, mirrors,
    unchanged,
};
use crate::model::{Model, actor};

/// The program under test, which is killed if the test does not end it.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(setup: &Setup, directory: &Path) -> Command {
    let file = directory.join("config.yaml");
    fs::write(&file, setup.yaml()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_raidfabric-under-test"));
    command.arg("serve").arg(file).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Program {
    pub(crate) fn start(setup: &Setup, directory: &Path) -> Self {
        Self::spawn(&mut command(setup, directory))
    }

    /// One that outlives a limit on the size of files, which makes writes fail.
    pub(crate) fn start_unlimited(setup: &Setup, directory: &Path) -> Self {
        let program = command(setup, directory);
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
        shell.arg(program.get_program()).args(program.get_args());
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        Self::spawn(&mut shell)
    }

    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = None;
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some((_, port)) = line.split_once(" -s ") {
                let port: u16 = port.split_whitespace().next().unwrap().parse().unwrap();
                address = Some(SocketAddr::from(([127, 0, 0, 1], port)));
            }
            if line.starts_with("serving") {
                break;
            }
        }
        let Some(address) = address else {
            let mut text = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut text);
            panic!("the program does not serve: {text}");
        };
        Self { child, address }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

pub(crate) fn run(setup: &Setup, directory: &Path) -> Output {
    command(setup, directory).stderr(Stdio::piped()).output().unwrap()
}

/// A port that somebody has, and a configuration that is wrong: exit code 2, and nothing happened.
#[tokio::test]
async fn what_cannot_be_served_exits_with_2_and_touches_nothing() {
    let (directory, names) = blank(4);
    let place = directory.path();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let setup = Setup::files("raid10", place, &names);
    for (what, line, named) in [
        ("a busy port", format!("listen: [\"127.0.0.1:{port}\"]"), port.to_string()),
        (
            "a busy discovery port",
            format!("listen: [\"127.0.0.1:0\"]\ndiscovery: [\"127.0.0.1:{port}\"]"),
            port.to_string(),
        ),
        ("no address of ours", "listen: [\"192.0.2.77:4420\"]".into(), "192.0.2.77".into()),
        ("a bad key", "listen: [\"127.0.0.1:0\"]\nlisten_on: 3".into(), "listen_on".into()),
    ] {
        let setup = setup.clone().listen(&line);
        fs::write(place.join("config.yaml"), setup.yaml()).unwrap();
        let before = contents(place);
        let output = run(&setup, place);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{what}: {text}");
        assert!(text.contains(&named), "{what}: {text}");
        unchanged(place, &before, what);
        assert!(!place.join("state").exists(), "{what}: the state directory was made");
    }
    let file = fs::File::options().write(true).open(place.join("two")).unwrap();
    file.write_all_at(b"XFSB", 0).unwrap();
    let output = run(&setup, place);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("two"));
}

/// SIGTERM ends the program with all arrays clean, while hosts are connected and writing.
#[tokio::test]
async fn a_terminated_program_leaves_clean_arrays() {
    let (directory, names) = blank(2);
    let place = directory.path();
    let setup = Setup::files("raid1", place, &names);
    let mut program = Program::start(&setup, place);
    let (controller, volume) = volume(program.address, 16).await;
    let writer = {
        let volume = volume.clone();
        tokio::spawn(async move {
            let mut last = None;
            for turn in 0u64.. {
                if volume.write(turn % 100, pattern(turn, BLOCK)).await.is_err() {
                    break;
                }
                last = Some(turn);
            }
            last.unwrap()
        })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    program.signal(rustix::process::Signal::TERM);
    let last = soon("the end of the writes", writer).await.unwrap();
    let status = program.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    drop((controller, volume));
    let target = setup.start();
    assert!(target.server().arrays().all(|(_, array)| array.is_in_sync()), "clean");
    let (_controller, volume) = raidfabric_tests::host::volume(target.address, 16).await;
    assert!(volume.read(last % 100, 1).await.unwrap() == pattern(last, BLOCK));
    target.stop();
    copies_are_equal(place, &mirrors("raid1", &names), 12 << 20, "after SIGTERM");
}

/// A host leaves while its commands are at the drives, with a Disconnect or without, and comes back
/// at once: nothing that it sent before comes after what it writes now.
#[tokio::test]
async fn late_commands_do_not_overtake_a_host_that_comes_back() {
    let (directory, names) = blank(2);
    let target = Setup::files("raid0", directory.path(), &names).start();
    let range = DsmRange { cattr: 0.into(), nlb: 1.into(), slba: 0.into() };
    let list = vec![range; DSM_RANGES_MAX];
    let login = Login::default();
    let connect = || RawHost::connect_with(target.address, NONE, Default::default(), login.clone());
    for round in 0..6u64 {
        let host = connect().await;
        let mut queue = host.io(1, 64).await;
        for cid in 0..32 {
            let command = IoCommand::DatasetManagement {
                nsid: 1,
                ranges: DSM_RANGES_MAX as u16,
                attributes: DsmAttributes::default().with_ad(true),
            };
            let dptr = Sgl::in_capsule(0, list.as_bytes().len() as u32);
            let sqe = Sqe { dptr, ..command.to_sqe(cid) };
            queue.send_command(&sqe, list.as_bytes()).await.unwrap();
        }
        if round % 2 == 0 {
            let disconnect = FabricsCommand::Disconnect { recfmt: 0 };
            queue.send_command(&disconnect.to_sqe(40), &[]).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop((queue, host));
        let host = connect().await;
        let mut queue = host.io(1, 64).await;
        queue.send_command(&inline_sqe(1, 0, 1), &pattern(round, BLOCK)).await.unwrap();
        assert!(completion(&mut queue).await.unwrap().status().is_success());
        // Only this host is left.
        target.settled_at("the last commands", |in_use| in_use.connections == 2).await;
        queue.send_command(&read_sqe(2, 0, 1), &[]).await.unwrap();
        let (_, data) = soon("data", queue.receive_response()).await.unwrap();
        assert!(data == pattern(round, BLOCK), "round {round}: an acknowledged write is gone");
        drop((queue, host));
        target.settled().await;
    }
    target.stop();
}

/// What one writer knows of its block: the newest version sent, acknowledged, and made durable.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    sent: u64,
    acknowledged: u64,
}

/// Contents of `blocks` in this version, which can be told from those of every other.
fn version(block: u64, version: u64) -> Vec<u8> {
    if version == 0 { vec![0; BLOCK] } else { pattern(block << 32 | version, BLOCK).to_vec() }
}

/// Killed under write load: after the next start everything that was acknowledged is there, the
/// copies are made equal in the background, and nothing is torn.
async fn killed(level: &str, count: usize) {
    const BLOCKS: u64 = 96;
    let (directory, names) = blank(count);
    let place = directory.path();
    let setup = Setup::files(level, place, &names);
    let known = Rc::new(RefCell::new(vec![Known::default(); BLOCKS as usize]));
    for round in 0..3u64 {
        let mut program = Program::start(&setup, place);
        let (controller, volume) = volume(program.address, 64).await;
        for block in 0..BLOCKS {
            check_block(&volume, &known, block, level).await;
        }
        let local = tokio::task::LocalSet::new();
        for block in 0..BLOCKS {
            let (volume, known) = (volume.clone(), Rc::clone(&known));
            local.spawn_local(async move {
                loop {
                    let next = known.borrow()[block as usize].sent + 1;
                    known.borrow_mut()[block as usize].sent = next;
                    // Across chunks and stripes.
                    let lba = block * 37;
                    if volume.write(lba, version(block, next).into()).await.is_err() {
                        return;
                    }
                    known.borrow_mut()[block as usize].acknowledged = next;
                    if next % 16 == block % 16 && volume.flush().await.is_err() {
                        return;
                    }
                }
            });
        }
        let killer = async {
            tokio::time::sleep(Duration::from_millis(200 + 130 * round)).await;
            program.child.kill().unwrap();
            program.child.wait().unwrap();
        };
        local.run_until(killer).await;
        soon("the end of the writers", local).await;
        drop((controller, volume));
    }
    let target = setup.start();
    if level != "raid0" {
        assert!(!target.server().arrays().all(|(_, array)| array.is_in_sync()), "not clean");
    }
    let (controller, volume) = volume(target.address, 64).await;
    for block in 0..BLOCKS {
        check_block(&volume, &known, block, level).await;
    }
    let start = Instant::now();
    while !target.server().arrays().all(|(_, array)| array.is_in_sync()) {
        assert!(start.elapsed() < Duration::from_secs(20), "{level}: the resync does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for block in 0..BLOCKS {
        check_block(&volume, &known, block, level).await;
    }
    assert!(known.borrow().iter().all(|known| known.acknowledged > 0), "nothing was written");
    drop((controller, volume));
    target.settle_and_stop().await;
    copies_are_equal(place, &mirrors(level, &names), 15 << 20, level);
}

/// A block holds a version between the last acknowledged and the last sent; that is the one which
/// counts from now on.
async fn check_block(volume: &Volume, known: &Rc<RefCell<Vec<Known>>>, block: u64, what: &str) {
    let Known { sent, acknowledged } = known.borrow()[block as usize];
    let found = soon(what, volume.read(block * 37, 1)).await.unwrap();
    let version = (acknowledged..=sent).find(|&n| found == version(block, n));
    let Some(version) = version else {
        panic!("{what}: block {block} holds no version from {acknowledged} to {sent}");
    };
    known.borrow_mut()[block as usize] = Known { sent: version, acknowledged: version };
}

/// Ended again and again, by kill or by a clean stop, at any time: while it starts, while it makes
/// copies equal, under load. Where the superblocks then say that copies agree, they do.
#[tokio::test]
async fn ended_in_any_state() {
    const BLOCKS: u64 = 96;
    let (directory, names) = blank(2);
    let place = directory.path();
    for name in &names {
        let file = fs::File::options().write(true).open(place.join(name)).unwrap();
        file.set_len(12 * FILE_BYTES).unwrap();
    }
    // All of it is made equal after a crash, so that the test may spoil any place.
    let setup = Setup::files_with("raid1", place, &names, "consistency: resync");
    let known = Rc::new(RefCell::new(vec![Known::default(); BLOCKS as usize]));
    let mut random = Random::new(7);
    let (mut resumed, mut unclean) = (0, 0);
    for round in 0..24u64 {
        let mut program = Program::start(&setup, place);
        let local = tokio::task::LocalSet::new();
        let connected = random.below(4) > 0;
        let hosts = if connected { Some(volume(program.address, 64).await) } else { None };
        if let Some((_, volume)) = &hosts {
            for block in 0..BLOCKS {
                check_block(volume, &known, block, "after an end").await;
            }
            for block in 0..BLOCKS {
                let (volume, known) = (volume.clone(), Rc::clone(&known));
                local.spawn_local(async move {
                    loop {
                        let next = known.borrow()[block as usize].sent + 1;
                        known.borrow_mut()[block as usize].sent = next;
                        if volume.write(block * 37, version(block, next).into()).await.is_err() {
                            return;
                        }
                        known.borrow_mut()[block as usize].acknowledged = next;
                    }
                });
            }
        }
        let kill = random.below(2) == 0;
        let wait = Duration::from_millis(random.below(120));
        let end = async {
            tokio::time::sleep(wait).await;
            if kill {
                program.child.kill().unwrap();
            } else {
                program.signal(rustix::process::Signal::TERM);
            }
            let child = &mut program.child;
            while child.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon("the end of the program", local.run_until(end)).await;
        soon("the end of the writers", local).await;
        drop(hosts);
        let position = names.iter().map(|name| resync_position(&place.join(name))).min().unwrap();
        let agree = position.min(64 << 20) as usize;
        copies_are_equal(place, &mirrors("raid1", &names), agree, &format!("round {round}"));
        resumed += u32::from(position > 0 && position < u64::MAX);
        if position == 0 {
            unclean += 1;
            // What was being written when it ended may differ anywhere.
            let path = place.join(names[1]);
            let file = fs::File::options().write(true).open(&path).unwrap();
            for mib in [5u64, 33, 60] {
                file.write_all_at(&pattern(round, 65536), data_offset(&path) + (mib << 20))
                    .unwrap();
            }
        }
    }
    println!("{unclean} unclean ends, {resumed} in the middle of a resync");
    assert!(unclean > 2);
}

/// Up to where a member's superblock says that copies agree, in bytes.
fn resync_position(path: &Path) -> u64 {
    let mut field = [0; 8];
    fs::File::open(path).unwrap().read_exact_at(&mut field, 4096 + 208).unwrap();
    u64::from_le_bytes(field).saturating_mul(512)
}

#[tokio::test]
async fn raid0_killed_under_load() {
    killed("raid0", 2).await;
}

#[tokio::test]
async fn raid1_killed_under_load() {
    killed("raid1", 2).await;
}

#[tokio::test]
async fn raid10_killed_under_load() {
    killed("raid10", 4).await;
}

/// While the copies are made equal after a kill, hosts read and write as ever.
async fn resync_under_load(level: &str, count: usize) {
    let (directory, names) = blank(count);
    let place = directory.path();
    for name in &names {
        let file = fs::File::options().write(true).open(place.join(name)).unwrap();
        file.set_len(4 * FILE_BYTES).unwrap();
    }
    let setup = Setup::files_with(level, place, &names, "consistency: resync");
    let mut shadow = {
        let mut program = Program::start(&setup, place);
        let (_controller, volume) = volume(program.address, 16).await;
        let shadow = fill(&volume, 5).await;
        volume.write(0, pattern(1, BLOCK)).await.unwrap();
        program.child.kill().unwrap();
        program.child.wait().unwrap();
        shadow
    };
    shadow[..BLOCK].copy_from_slice(&pattern(1, BLOCK));
    // What a kill in the middle of a write leaves: copies that differ where nobody knows. The
    // first copy is the one that counts until they are equal.
    for group in mirrors(level, &names) {
        for other in &group[1..] {
            let path = place.join(other);
            let file = fs::File::options().write(true).open(&path).unwrap();
            for mib in [3u64, 17, 40] {
                let junk = pattern(mib, 65536);
                file.write_all_at(&junk, data_offset(&path) + (mib << 20)).unwrap();
            }
        }
    }
    let target = setup.start();
    assert!(!target.server().arrays().all(|(_, array)| array.is_in_sync()), "not clean");
    let used = shadow.len() / if level == "raid10" { count / 2 } else { 1 };
    let model = Rc::new(RefCell::new(Model::new(shadow)));
    let local = tokio::task::LocalSet::new();
    let (mut volumes, mut controllers) = (Vec::new(), Vec::new());
    for host in 0..3 {
        let (controller, volume) = volume(target.address, 16).await;
        for depth in 0..6 {
            let seed = host * 10 + depth;
            local.spawn_local(actor(volume.clone(), Rc::clone(&model), seed, 60));
        }
        volumes.push(volume);
        controllers.push(controller);
    }
    soon("commands beside the resync", local).await;
    let start = Instant::now();
    while !target.server().arrays().all(|(_, array)| array.is_in_sync()) {
        assert!(start.elapsed() < Duration::from_secs(20), "{level}: the resync does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let shadow = std::mem::take(&mut model.borrow_mut().shadow);
    check(&volumes[0], &shadow, "after the resync").await;
    drop((volumes, controllers));
    target.settle_and_stop().await;
    copies_are_equal(place, &mirrors(level, &names), used, level);
}

#[tokio::test]
async fn raid1_resync_under_load() {
    resync_under_load("raid1", 3).await;
}

#[tokio::test]
async fn raid10_resync_under_load() {
    resync_under_load("raid10", 4).await;
}

/// Hosts on different cores write the same blocks: the copies come out equal.
#[tokio::test]
async fn copies_are_equal_after_overlapping_writes() {
    for (level, count) in [("raid1", 3), ("raid10", 4)] {
        let (directory, names) = blank(count);
        let target: Target = Setup::files(level, directory.path(), &names).start();
        let (mut volumes, mut controllers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
            volumes.push(controller.volume(1, 16).await.unwrap());
            volumes.push(controller.volume(1, 16).await.unwrap());
            controllers.push(controller);
        }
        let mut tasks = Vec::new();
        for (writer, volume) in volumes.iter().enumerate() {
            for depth in 0..4 {
                let volume = volume.clone();
                let mut random = Random::new((writer * 8 + depth) as u64);
                tasks.push(tokio::spawn(async move {
                    for _ in 0..25 {
                        let count = 1 + random.below(40);
                        let lba = random.below(128 - count);
                        volume.write(lba, random.bytes(count as usize * BLOCK)).await.unwrap();
                    }
                }));
            }
        }
        for task in tasks {
            soon("overlapping writes", task).await.unwrap();
        }
        target.stop();
        copies_are_equal(directory.path(), &mirrors(level, &names), 1 << 20, level);
    }
}
