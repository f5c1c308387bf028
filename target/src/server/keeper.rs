//! Makes the arrays' state durable for the data cores.
//!
//! Level-triggered: a data core that changed something rings ([`Bell`]), and the control plane
//! compares what is wanted with what is recorded until they are the same. Superblocks are written on
//! the blocking pool, one version of an array after the other.
//!
//! **The order.** A version that loses a member is durable in the superblocks of all others, then in
//! the state directory, and only then the array hears of it ([`Shared::recorded`]), which lets the
//! writes go on that the lost member missed. Where the state directory cannot take it the record
//! there is removed instead, as it would call the lost member good; while not even that can be
//! done, the array waits.
//!
//! **Safe mode.** After a pause in writing the superblocks say "clean" again, so that a crash from
//! then on costs nothing. [`Shared::try_clean`] lets no write slip in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raidfabric_raid::array::{Keeper, MemberFault, Shared, Wanted};
use raidfabric_raid::assemble::{ArrayHandle, UpdateError};
use raidfabric_raid::device::Medium;
use raidfabric_raid::drive::DriveError;
use tokio::sync::Notify;
use uuid::Uuid;

use super::patient::PatientDevice;
use super::state::{Record, StateDirectory, StateError};

/// How long it takes to try again what could not be recorded for reasons that are none of a
/// member's.
const RETRY: Duration = Duration::from_secs(1);
/// How often a pause in writing is looked for, within the delay after which the array is clean.
const LOOKS_PER_DELAY: u32 = 4;

/// Rung by data cores when something else is wanted.
#[derive(Default)]
pub struct Bell(Notify);

impl Keeper for Bell {
    fn wake(&self) {
        self.0.notify_one();
    }
}

/// What writes down the state of one array. Blocking.
pub struct Recorder<M> {
    name: String,
    uuid: Uuid,
    shared: Arc<Shared>,
    handle: Arc<Mutex<ArrayHandle<M>>>,
    state: Option<StateDirectory>,
    /// Told to the log, once for each trouble.
    is_in_trouble: AtomicBool,
    /// A loss is in the superblocks, and not yet in the state directory.
    owes_note: AtomicBool,
    /// The drives that were recorded last, by number.
    devices: Mutex<Vec<u64>>,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All that is wanted is recorded.
    Done,
    /// Something else is wanted now.
    Again,
    /// It cannot be recorded now; whoever rings next has it tried again.
    Refused,
    /// It cannot be recorded now, and has to be tried again in a while.
    Later,
}

impl<M: Medium> Recorder<M> {
    /// For an array whose superblocks are in `handle`.
    pub fn new(
        name: String,
        shared: Arc<Shared>,
        handle: Arc<Mutex<ArrayHandle<M>>>,
        state: Option<StateDirectory>,
    ) -> Self {
        let uuid = Uuid::from_bytes(shared.uuid());
        let (is_in_trouble, owes_note) = Default::default();
        let devices = Mutex::new(shared.wanted().devices);
        Self { name, uuid, shared, handle, state, is_in_trouble, owes_note, devices }
    }

    /// Records what is wanted now, if it is not recorded.
    pub fn turn(&self) -> Turn {
        let wanted = self.shared.wanted();
        if wanted.version <= self.shared.recorded_version() {
            return Turn::Done;
        }
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = match handle.record(&wanted) {
            Ok(recorded) => recorded,
            Err(error) => {
                drop(handle);
                return self.believe(&error);
            }
        };
        let members = handle.members().iter();
        let names: Vec<_> = members.map(|one| (one.slot(), one.medium().name())).collect();
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        // Where a new drive is has to be known, too, if it is a file.
        let is_new = *devices != wanted.devices;
        devices.clone_from(&wanted.devices);
        drop(devices);
        self.owes_note.fetch_or(recorded.lost_member || is_new, Ordering::Relaxed);
        if self.owes_note.load(Ordering::Relaxed)
            && let Err(error) = self.note(recorded.events, names)
        {
            self.complain("writes wait: the loss of a member is not noted", &error);
            return Turn::Later;
        }
        self.owes_note.store(false, Ordering::Relaxed);
        self.tell(&wanted);
        self.shared.recorded_events(&wanted, recorded.events);
        self.shared.recorded(wanted.version);
        Turn::Again
    }

    /// Notes the events of an array that has lost a member.
    fn note(&self, events: u64, names: Vec<(usize, String)>) -> Result<(), StateError> {
        let Some(state) = &self.state else { return Ok(()) };
        let known = state.record(&self.name).ok().flatten();
        let known = known.filter(|known| known.uuid == self.uuid);
        let mut record = known.unwrap_or_else(|| Record::new(self.uuid, Vec::new(), Some(events)));
        record.events = Some(events);
        record.members.resize(self.shared.geometry().members(), String::new());
        for (slot, name) in names {
            if let Some(known) = record.members.get_mut(slot) {
                *known = name;
            }
        }
        let Err(error) = state.remember(&self.name, &record) else { return Ok(()) };
        state.forget(&self.name)?;
        tracing::error!(
            array = self.name, %error,
            "the loss of a member is not noted in the state directory, whose record is removed: \
             until it can be written the array does not start without all its members"
        );
        Ok(())
    }

    /// Notes that the array's redundancy has been whole. It is only said to people, so that it does
    /// not matter much if it cannot be noted.
    pub(super) fn note_built(&self) {
        // What else is noted is noted under this lock.
        let _handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = &self.state else { return };
        let noted = state.record(&self.name).and_then(|known| match known {
            Some(known) => state.remember(&self.name, &Record { is_building: false, ..known }),
            None => Ok(()),
        });
        if let Err(error) = noted {
            tracing::warn!(array = self.name, %error, "not noted that the array has been built");
        }
    }

    /// A member could not take it: it has failed. Lack of space below a file is no such failure.
    fn believe(&self, error: &UpdateError) -> Turn {
        self.complain("the array's state is not recorded", error);
        let slot = error.slot();
        match error {
            UpdateError::Cannot { .. } => {
                self.shared.fail_member(slot, MemberFault::BadBlocksFull);
            }
            UpdateError::Write { source, .. }
            | UpdateError::Read { source, .. }
            | UpdateError::Flush { source, .. } => {
                let errno = source.raw_os_error().unwrap_or(libc::EIO);
                match (DriveError::from_errno(errno), error) {
                    (DriveError::NoSpace, _) => {
                        self.shared.record_failed(slot, DriveError::NoSpace);
                        return Turn::Refused;
                    }
                    // It is told once only that what was written before is lost.
                    (failure, UpdateError::Flush { .. }) => self.shared.fail_flush(slot, failure),
                    // It writes no more, and yet has what it was given before: it can be read.
                    (failure, _) if self.flushes(slot) => {
                        self.shared.fail_member(slot, MemberFault::Write(failure));
                    }
                    (failure, _) => self.shared.record_failed(slot, failure),
                }
            }
        }
        // An array that has failed with it wants nothing else: it would be tried for ever.
        if self.shared.failure().is_some() { Turn::Refused } else { Turn::Again }
    }

    /// Whether a member says that it has kept all that it has acknowledged.
    fn flushes(&self, slot: usize) -> bool {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.member(slot).is_some_and(|member| member.medium().flush().is_ok())
    }

    /// Says it once, until something is recorded again.
    fn complain(&self, what: &str, error: &dyn std::fmt::Display) {
        if !self.is_in_trouble.swap(true, Ordering::Relaxed) {
            tracing::error!(array = self.name, %error, "{what}");
        }
    }

    fn tell(&self, wanted: &Wanted) {
        self.is_in_trouble.store(false, Ordering::Relaxed);
        tracing::debug!(
            array = self.name,
            version = wanted.version,
            active = wanted.active,
            members = ?wanted.members,
            "recorded"
        );
    }

    /// Records until nothing is left, or something is in the way.
    pub fn settle(&self) -> Turn {
        loop {
            match self.turn() {
                Turn::Again => {}
                end => return end,
            }
        }
    }
}

/// Records what an array wants whenever it rings, and has it marked clean after a pause in writing,
/// for ever.
pub async fn keep(
    bell: Arc<Bell>,
    recorder: Arc<Recorder<PatientDevice>>,
    safe_mode_delay: Duration,
) {
    let shared = Arc::clone(&recorder.shared);
    let mut pause = Pause::new(safe_mode_delay, shared.writes_begun(), Instant::now());
    let mut looks = tokio::time::interval((safe_mode_delay / LOOKS_PER_DELAY).max(RETRY / 40));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = bell.0.notified() => {}
            _ = looks.tick() => {
                if pause.is_over(shared.writes_begun(), Instant::now()) {
                    // Rings if there is something to be recorded.
                    shared.try_clean();
                }
                continue;
            }
        }
        let recorder = Arc::clone(&recorder);
        match tokio::task::spawn_blocking(move || recorder.settle()).await {
            Ok(Turn::Later) => {
                tokio::time::sleep(RETRY).await;
                bell.wake();
            }
            Ok(_) => {}
            // The runtime is going away, or the drive's driver panicked under us.
            Err(_) => return,
        }
    }
}

/// Finds pauses in writing. Time comes in as a parameter.
struct Pause {
    delay: Duration,
    writes: u64,
    since: Instant,
}

impl Pause {
    fn new(delay: Duration, writes: u64, now: Instant) -> Self {
        Self { delay, writes, since: now }
    }

    /// Whether no write has begun for the delay.
    fn is_over(&mut self, writes: u64, now: Instant) -> bool {
        if writes != self.writes {
            (self.writes, self.since) = (writes, now);
        }
        now.saturating_duration_since(self.since) >= self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::fs;
    use std::io;

    use raidfabric_raid::array::{MemberState, Settings, WriteState};
    use raidfabric_raid::assemble::{self, NewArray, examine_medium, plan_create};
    use raidfabric_raid::metadata::Level;

    /// What a drive does instead of what it is asked.
    #[derive(Default)]
    struct Fault {
        write: Option<i32>,
        flush: Option<i32>,
    }

    /// A drive in memory that can be told to fail.
    struct Fickle {
        bytes: RefCell<Vec<u8>>,
        fault: Arc<Mutex<Fault>>,
    }

    impl Fickle {
        fn new() -> (Self, Arc<Mutex<Fault>>) {
            let fault = Arc::new(Mutex::new(Fault::default()));
            (Self { bytes: RefCell::new(vec![0; 32 << 20]), fault: Arc::clone(&fault) }, fault)
        }
    }

    fn errno(errno: Option<i32>) -> io::Result<()> {
        errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    impl Medium for Fickle {
        fn name(&self) -> String {
            "fickle".into()
        }

        fn size_bytes(&self) -> u64 {
            self.bytes.borrow().len() as u64
        }

        fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
            let at = offset_bytes as usize;
            buf.copy_from_slice(&self.bytes.borrow()[at..at + buf.len()]);
            Ok(())
        }

        fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
            errno(self.fault.lock().unwrap().write)?;
            let at = offset_bytes as usize;
            self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            // Told once only, as the kernel does.
            errno(self.fault.lock().unwrap().flush.take())
        }

        fn zero_cheaply(&self, _: u64, _: u64) -> io::Result<bool> {
            Ok(true)
        }
    }

    struct Setup {
        recorder: Recorder<Fickle>,
        faults: Vec<Arc<Mutex<Fault>>>,
        folder: tempfile::TempDir,
        state: StateDirectory,
    }

    /// A new mirror of three.
    fn mirror() -> Setup {
        let (media, faults): (Vec<_>, Vec<_>) = (0..3).map(|_| Fickle::new()).unzip();
        let new = NewArray {
            name: "a".into(),
            homehost: None,
            level: Level::Raid1,
            chunk_bytes: 0,
            uuid: None,
            consistency: None,
            assume_clean: false,
        };
        let examined: Vec<_> = media.iter().map(|m| examine_medium(m).unwrap()).collect();
        let plan = plan_create(&examined, &new).unwrap();
        let mut handle = assemble::create(&plan, media).unwrap();
        handle.take_over().unwrap();
        let members = handle.members().iter();
        let shared = Shared::new(Settings {
            uuid: *handle.info().uuid.as_bytes(),
            data_offsets_bytes: members.map(|m| m.data_offset_bytes()).collect(),
            active: false,
            keeper: Arc::new(Bell::default()),
            ..Settings::new(handle.info().engine_geometry().unwrap())
        });
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(&folder.path().join("state")).unwrap();
        let handle = Arc::new(Mutex::new(handle));
        let recorder = Recorder::new("a".into(), shared, handle, Some(state.clone()));
        Setup { recorder, faults, folder, state }
    }

    impl Setup {
        fn is_recorded(&self) -> bool {
            self.recorder.shared.recorded_version() == self.recorder.shared.wanted().version
        }

        fn members(&self) -> Vec<MemberState> {
            self.recorder.shared.member_states()
        }
    }

    #[test]
    fn the_loss_of_a_member_is_noted_before_the_array_hears_that_it_is_recorded() {
        let setup = mirror();
        assert_eq!(setup.recorder.settle(), Turn::Done);
        assert_eq!(setup.state.record("a").unwrap(), None, "nothing was lost");
        setup.recorder.shared.fail_member(1, MemberFault::Operator);
        assert!(!setup.is_recorded());
        assert_eq!(setup.recorder.settle(), Turn::Done);
        assert!(setup.is_recorded());
        let events = setup.recorder.handle.lock().unwrap().info().events;
        assert_eq!(setup.state.record("a").unwrap().unwrap().events, Some(events));
    }

    /// A stale record calls the lost member good.
    #[test]
    fn where_a_loss_cannot_be_noted_the_record_is_removed() {
        let setup = mirror();
        let old = Record::new(Uuid::from_u128(1), Vec::new(), Some(1));
        setup.state.remember("a", &old).unwrap();
        fs::create_dir(setup.state.path_of("a").with_extension("json.new")).unwrap();
        setup.recorder.shared.fail_member(1, MemberFault::Operator);
        assert_eq!(setup.recorder.settle(), Turn::Done);
        assert!(setup.is_recorded());
        assert_eq!(setup.state.record("a").unwrap(), None);
    }

    #[test]
    fn while_not_even_that_can_be_done_the_array_waits() {
        let setup = mirror();
        let path = setup.folder.path().join("state");
        fs::remove_dir_all(&path).unwrap();
        setup.recorder.shared.fail_member(1, MemberFault::Operator);
        for _ in 0..2 {
            assert_eq!(setup.recorder.settle(), Turn::Later);
            assert!(!setup.is_recorded(), "the superblocks have it, the state directory has not");
        }
        fs::create_dir(&path).unwrap();
        assert_eq!(setup.recorder.settle(), Turn::Done);
        assert!(setup.is_recorded());
        assert!(setup.state.record("a").unwrap().unwrap().events.is_some());
    }

    #[test]
    fn a_member_that_takes_no_superblock_has_failed_and_the_others_record_it() {
        let setup = mirror();
        setup.faults[0].lock().unwrap().write = Some(libc::EIO);
        setup.recorder.shared.fail_member(2, MemberFault::Operator);
        assert_eq!(setup.recorder.settle(), Turn::Done);
        let [failed, in_sync] = [MemberState::Failed, MemberState::InSync];
        assert_eq!(setup.members(), [failed, in_sync, failed]);
        assert!(setup.is_recorded());
        let fault = setup.recorder.shared.member_fault(0);
        assert_eq!(fault, Some(MemberFault::Write(DriveError::Io { errno: libc::EIO })));
        // One that does not flush either may have lost what it had acknowledged.
        let setup = mirror();
        let error = Some(libc::EIO);
        *setup.faults[0].lock().unwrap() = Fault { write: error, flush: error };
        setup.recorder.shared.fail_member(2, MemberFault::Operator);
        assert_eq!(setup.recorder.settle(), Turn::Done);
        let fault = setup.recorder.shared.member_fault(0);
        assert_eq!(fault, Some(MemberFault::Superblock(DriveError::Io { errno: libc::EIO })));
    }

    /// The flush before "clean" was told that a drive had lost writes, which is told once. The next
    /// flush of a host succeeded, and was answered so, without them.
    #[test]
    fn what_the_flush_before_clean_hears_of_lost_writes_is_not_forgotten() {
        let mut setup = mirror();
        let mut handle = setup.recorder.handle.lock().unwrap();
        handle.mark_active().unwrap();
        let geometry = handle.info().engine_geometry().unwrap();
        drop(handle);
        let keeper = Arc::new(Bell::default());
        setup.recorder.shared = Shared::new(Settings { keeper, ..Settings::new(geometry) });
        setup.recorder.shared.stop_writes();
        assert!(setup.recorder.shared.try_clean());
        setup.faults[0].lock().unwrap().flush = Some(libc::EIO);
        assert_eq!(setup.recorder.settle(), Turn::Done);
        let fault = setup.recorder.shared.member_fault(0);
        assert_eq!(fault, Some(MemberFault::Flush(DriveError::Io { errno: libc::EIO })));
        assert!(setup.is_recorded());
    }

    #[test]
    fn what_nobody_can_record_is_not_tried_for_ever() {
        let setup = mirror();
        for fault in &setup.faults[..2] {
            fault.lock().unwrap().write = Some(libc::EIO);
        }
        setup.recorder.shared.fail_member(2, MemberFault::Operator);
        assert_eq!(setup.recorder.settle(), Turn::Refused);
        assert_eq!(setup.recorder.shared.write_state(), WriteState::Failed);
    }

    #[test]
    fn lack_of_space_fails_no_member() {
        let setup = mirror();
        setup.faults[0].lock().unwrap().write = Some(libc::ENOSPC);
        setup.recorder.shared.fail_member(2, MemberFault::Operator);
        assert_eq!(setup.recorder.settle(), Turn::Refused);
        assert_eq!(setup.members()[..2], [MemberState::InSync, MemberState::InSync]);
        assert!(!setup.is_recorded());
        setup.faults[0].lock().unwrap().write = None;
        assert_eq!(setup.recorder.settle(), Turn::Done);
        assert!(setup.is_recorded());
    }

    #[test]
    fn a_pause_is_over_when_nothing_was_written_for_the_delay() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut pause = Pause::new(second * 5, 7, start);
        assert!(!pause.is_over(7, start + second * 4));
        assert!(pause.is_over(7, start + second * 5));
        assert!(!pause.is_over(8, start + second * 6));
        assert!(!pause.is_over(8, start + second * 10));
        assert!(pause.is_over(8, start + second * 11));
    }
}
