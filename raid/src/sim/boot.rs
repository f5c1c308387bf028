//! One boot: the array that assembly has come to, on several cores, with its keeper and its hosts,
//! until it is stopped, its process dies, or the power is cut.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::check::{Images, Place};
use super::client::Scene;
use super::control::Control;
use super::disk;
use super::drive::SimDrive;
use super::faults::Faults;
use super::ground::Ground;
use super::image::SECTOR_BYTES;
use super::keeper::{Bell, keep, rest};
use super::model::Model;
use super::operator::Operator;
use super::runner::Story;
use super::world::{Clock, Random, World};
use crate::array::{
    Array, BadRange, IN_SYNC, IntentLayout, Keeper, Limit, MemberState, RecoveryState, Settings,
    Shared, WriteState,
};
use crate::buffer::Pool;
use crate::geometry::Geometry;
use crate::mesh::Mesh;

/// What assembly has come to.
pub(crate) struct Start {
    pub(crate) geometry: Geometry,
    /// By slot.
    pub(crate) places: Vec<Option<Place>>,
    pub(crate) members: Vec<MemberState>,
    pub(crate) active: bool,
    pub(crate) resync_from: u64,
    pub(crate) rebuild_from: Option<u64>,
    pub(crate) bad_blocks: Vec<Vec<BadRange>>,
    pub(crate) intent: IntentLayout,
    pub(crate) read_error_limit: u32,
    pub(crate) bad_block_limit: u32,
    pub(crate) cores: usize,
    pub(crate) unit: usize,
}

/// What stays from boot to boot.
#[derive(Clone)]
pub(crate) struct Lasting {
    pub(crate) model: Rc<RefCell<Model>>,
    pub(crate) faults: Rc<Faults>,
    pub(crate) hot: Rc<[Range<usize>]>,
    pub(crate) story: Rc<RefCell<Story>>,
    pub(crate) stale: Rc<RefCell<Vec<bool>>>,
    /// The operator took a risk: nobody vouches for copies and parity any more.
    pub(crate) is_tainted: Rc<Cell<bool>>,
    pub(crate) pool: Pool,
    /// The operator has taken parity as right that need not be.
    pub(crate) was_forced: Rc<Cell<bool>>,
}

/// A running array.
pub(crate) struct Boot {
    pub(crate) world: Rc<World>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) scene: Rc<Scene>,
    faults: Rc<Faults>,
    busy_hosts: Rc<Cell<u64>>,
    tasks: Rc<Cell<u64>>,
    ends: Rc<Cell<bool>>,
    /// The operator has to stop.
    retires: Rc<Cell<bool>>,
    is_tainted: Rc<Cell<bool>>,
    idle_bytes: usize,
}

impl Boot {
    pub(crate) fn new(
        random: &mut Random,
        start: Start,
        lasting: &Lasting,
        new_drives: disk::Model,
        control: impl FnOnce(&Rc<World>, &Arc<Shared>) -> Rc<Control>,
    ) -> Self {
        let world = World::new(random.next());
        let bell = Arc::new(Bell::default());
        let offset = |place: &Option<Place>| place.as_ref().map_or(0, |p| p.data_offset_bytes);
        let shared = Shared::new(Settings {
            service: 3,
            uuid: [7; 16],
            geometry: start.geometry,
            data_offsets_bytes: start.places.iter().map(offset).collect(),
            cores: start.cores,
            active: start.active,
            resync_position_bytes: start.resync_from,
            members: start.members.clone(),
            rebuild_from: start.rebuild_from,
            bad_blocks: start.bad_blocks.clone(),
            read_error_limit: start.read_error_limit,
            bad_block_limit: start.bad_block_limit,
            intent: start.intent.clone(),
            keeper: Arc::clone(&bell) as Arc<dyn Keeper>,
        });
        shared.set_checkpoint_interval([256 << 10, 1 << 20, 1 << 30][random.below(3) as usize]);
        let pool = lasting.pool.clone();
        let arrays = Self::arrays(random, &start, &world, &shared, &pool, &lasting.faults);
        let out: Vec<bool> =
            start.members.iter().map(|state| *state != MemberState::InSync).collect();
        let ground = Rc::new(Ground {
            shared: Arc::clone(&shared),
            faults: Rc::clone(&lasting.faults),
            places: RefCell::new(start.places),
            read_error_limit: u64::from(start.read_error_limit),
            bad_block_limit: start.bad_block_limit,
            ever_out: RefCell::new(out.clone()),
            out: RefCell::new(out),
            stale: Rc::clone(&lasting.stale),
            epoch: Cell::new(0),
            bad_blocks: RefCell::new(shared.wanted().bad_blocks),
            brings_bad_blocks: Cell::new(false),
            ever_bad: RefCell::new(shared.wanted().bad_blocks),
        });
        let scene = Rc::new(Scene {
            world: Rc::clone(&world),
            arrays,
            pool,
            model: Rc::clone(&lasting.model),
            ground,
            hot: Rc::clone(&lasting.hot),
            story: Rc::clone(&lasting.story),
            unit: start.unit,
            is_stopping: Cell::new(false),
            lingering: RefCell::default(),
            was_forced: Rc::clone(&lasting.was_forced),
        });
        let watched = Rc::downgrade(&scene);
        world.add_hook(move || {
            if let Some(scene) = watched.upgrade() {
                scene.watch();
            }
        });
        let boot = Self {
            idle_bytes: scene.pool.in_use_bytes(),
            faults: Rc::clone(&lasting.faults),
            scene,
            busy_hosts: Rc::default(),
            tasks: Rc::default(),
            ends: Rc::default(),
            retires: Rc::default(),
            is_tainted: Rc::clone(&lasting.is_tainted),
            shared,
            world,
        };
        let control = control(&boot.world, &boot.shared);
        let records = Rc::clone(&control);
        boot.world.spawn(keep(bell, Arc::clone(&boot.shared), Rc::clone(&boot.world), records));
        boot.serve_calls(1 + random.below(3));
        boot.start_tasks(random);
        if random.below(2) == 0 && !lasting.was_forced.get() {
            let (scene, ends) = (Rc::clone(&boot.scene), Rc::clone(&boot.retires));
            boot.task(Operator { scene, control, ends, model: new_drives }.work());
        }
        boot
    }

    fn arrays(
        random: &mut Random,
        start: &Start,
        world: &Rc<World>,
        shared: &Arc<Shared>,
        pool: &Pool,
        faults: &Rc<Faults>,
    ) -> Vec<Rc<Array<SimDrive>>> {
        let calls_per_pair = 1 + random.below(6) as u32;
        let ends = Mesh::with_calls_per_pair(start.cores, world.doorbell(), calls_per_pair);
        let drive = |place: &Option<Place>| {
            place.as_ref().map(|place| SimDrive {
                world: Rc::clone(world),
                disk: Rc::clone(&place.disk),
                faults: Rc::clone(faults),
            })
        };
        ends.into_iter()
            .map(|end| {
                let end = Rc::new(end);
                let hears = Rc::clone(&end);
                world.add_core(move || hears.handle_doorbell());
                let drives = start.places.iter().map(drive).collect();
                let array = Array::with_slots(Arc::clone(shared), drives, end, pool.clone());
                Rc::new(array.unwrap().with_timer(Rc::new(Clock(Rc::clone(world)))))
            })
            .collect()
    }

    /// Starts the servers of other cores' calls, so many on each core.
    fn serve_calls(&self, servers: u64) {
        for array in &self.scene.arrays {
            for _ in 0..servers {
                let array = Rc::clone(array);
                self.world.spawn(async move {
                    array.serve().await;
                });
            }
            let array = Rc::clone(array);
            self.world.spawn(async move { array.resume().await });
        }
    }

    /// Starts what runs in the background.
    fn start_tasks(&self, random: &mut Random) {
        for keeps_intent in [false, true] {
            let array = Rc::clone(&self.scene.arrays[self.scene.any_core()]);
            let clock = Clock(Rc::clone(&self.world));
            self.task(async move {
                match keeps_intent {
                    false => array.recover(&clock).await,
                    true => array.keep_intent(&clock).await,
                }
            });
        }
        let delay = [2, 10, 5000, 120_000][random.below(4) as usize];
        let rest = rest(
            Arc::clone(&self.shared),
            Rc::clone(&self.world),
            Duration::from_millis(delay),
            Rc::clone(&self.ends),
        );
        self.world.spawn(rest);
    }

    /// Something that has to end when the array is stopped.
    fn task(&self, task: impl Future<Output = ()> + 'static) {
        let count = Rc::clone(&self.tasks);
        count.set(count.get() + 1);
        self.world.spawn(async move {
            task.await;
            count.set(count.get() - 1);
        });
    }

    /// Runs `work` to its end.
    fn run<F: Future<Output = ()> + 'static>(&self, what: &str, work: F) {
        let done = Rc::new(Cell::new(false));
        let set = Rc::clone(&done);
        self.world.spawn(async move {
            work.await;
            set.set(true);
        });
        assert!(self.world.run_until(|| done.get()), "{what} hangs");
    }

    /// Reads all that hosts use, twice if `twice`, without new faults.
    pub(crate) fn verify(&self, twice: bool) {
        self.faults.suspend(true);
        for _ in 0..if twice { 2 } else { 1 } {
            for region in self.scene.hot.iter() {
                let (scene, region) = (Rc::clone(&self.scene), region.clone());
                let core = scene.any_core();
                // In pieces of random length, so that what cannot be read hides nothing else.
                self.run("the check after booting", async move {
                    let mut at = region.start;
                    while at < region.end {
                        let blocks = 1 + scene.world.below(12) as usize;
                        let end = (at + blocks * scene.unit).min(region.end);
                        scene.read(core, at..end).await;
                        at = end;
                    }
                });
            }
        }
        self.faults.suspend(false);
    }

    /// Where the engine says that copies agree, or parity is right, that is so.
    pub(crate) fn check_agreement(&self) {
        self.check_where_trusted(false, "at the start");
    }

    fn check_where_trusted(&self, surviving: bool, when: &str) {
        if self.is_tainted.get() {
            return;
        }
        let geometry = self.shared.geometry();
        let places = self.places_in_sync();
        let images = Images { geometry, places: &places, surviving };
        let array = &self.scene.arrays[0];
        let has_parity = geometry.level().parities() > 0;
        let step = if has_parity { geometry.row_data_bytes() } else { 64 << 10 };
        let bad = self.shared.wanted().bad_blocks;
        let mut at = 0;
        while at < geometry.capacity_bytes() {
            let range = at..(at + step).min(geometry.capacity_bytes());
            at = range.end;
            let is_bad = bad.iter().enumerate().any(|(slot, bad)| {
                let here = if has_parity {
                    let from = geometry.row_component_offset(geometry.row_of(range.start));
                    from..from + geometry.chunk_bytes().unwrap_or(0)
                } else {
                    geometry.member_range(slot, range.start, range.end - range.start)
                };
                let meets = |b: &BadRange| b.start_bytes < here.end && here.start < b.end_bytes;
                bad.iter().any(meets)
            });
            if is_bad || !array.view(range.clone()).agrees {
                continue;
            }
            if let Err(broken) = images.check(range) {
                let position = self.shared.resync_position_bytes();
                panic!("{when}, where it is trusted (resync position {position}), {broken}");
            }
        }
    }

    /// The members that the engine says are in sync.
    fn places_in_sync(&self) -> Vec<Option<Place>> {
        let members = self.shared.wanted().members;
        let places = self.scene.ground.places.borrow();
        let in_sync = |(place, state): (&Option<Place>, &MemberState)| {
            place.clone().filter(|_| *state == MemberState::InSync)
        };
        places.iter().zip(&members).map(in_sync).collect()
    }

    /// Starts hosts on all cores, each with so many requests.
    pub(crate) fn start_hosts(&self, per_core: u64, requests: u64) {
        for core in 0..self.scene.arrays.len() {
            for _ in 0..per_core {
                let (scene, busy) = (Rc::clone(&self.scene), Rc::clone(&self.busy_hosts));
                busy.set(busy.get() + 1);
                self.world.spawn(async move {
                    for _ in 0..requests {
                        if scene.world.one_in(12) {
                            scene.stream(core).await;
                        } else {
                            scene.request(core).await;
                        }
                        if scene.world.one_in(40) {
                            // A pause long enough for everything that waits for one.
                            scene.world.sleep_ns(scene.world.below(12_000_000_000)).await;
                        }
                    }
                    busy.set(busy.get() - 1);
                });
            }
        }
    }

    /// Lets the hosts finish, perhaps the resync too, and stops the array cleanly. False if it has
    /// failed.
    pub(crate) fn finish(&self, waits_for_resync: bool) -> bool {
        let world = &self.world;
        let busy = Rc::clone(&self.busy_hosts);
        let failure = || self.shared.failure();
        assert!(world.run_until(|| busy.get() == 0), "a request hangs: {:?}", failure());
        if waits_for_resync {
            // Where a member is missing parity may have to wait for it.
            let has_parity = self.shared.geometry().parities() > 0;
            let is_over = || {
                let doing = self.shared.recovery_status(Duration::ZERO);
                doing.state == RecoveryState::Idle
                    // For good, if nobody writes what was lost.
                    || matches!(doing.limited_by, Some(Limit::BadBlocksFull { .. }))
                    || self.shared.failure().is_some()
                    || has_parity && self.shared.is_degraded()
            };
            assert!(world.run_until(is_over), "the long tasks hang");
        }
        self.scene.is_stopping.set(true);
        self.retires.set(true);
        self.shared.stop_resync();
        self.shared.stop_intent();
        let tasks = Rc::clone(&self.tasks);
        assert!(world.run_until(|| tasks.get() == 0), "the background tasks do not stop");
        self.shared.stop_writes();
        assert!(world.run_until(|| self.shared.writes_in_flight() == 0), "writes do not end");
        self.ends.set(true);
        if world.one_in(2) {
            let array = Rc::clone(&self.scene.arrays[self.scene.any_core()]);
            self.run("the clearing of the write intent", async move {
                array.clear_intent().await;
            });
        }
        let is_cleaned = self.shared.try_clean();
        let is_recorded = || self.shared.recorded_version() >= self.shared.wanted().version;
        let has_failed = || self.shared.write_state() == WriteState::Failed;
        let done = world.run_until(|| has_failed() || is_recorded());
        let clean = !has_failed() && is_recorded() && !self.shared.wanted().active;
        assert!(done || self.scene.ground.had_no_space(), "\"clean\" is not recorded");
        let held = self.scene.pool.in_use_bytes();
        assert_eq!(held, self.idle_bytes, "memory is held by nobody");
        if clean && is_cleaned {
            // All members were flushed before that was recorded.
            let began = self.scene.model.borrow_mut().begin();
            self.scene.model.borrow_mut().flushed(began);
        }
        if clean {
            self.check_where_trusted(false, "in a clean array");
        }
        if clean && is_cleaned {
            // All members were flushed.
            self.check_where_trusted(true, "in a clean array");
        }
        clean
    }

    /// The end, whatever is under way.
    pub(crate) fn stop(&self) {
        let mut story = self.scene.story.borrow_mut();
        let wanted = self.shared.wanted();
        let is = |state| wanted.members.iter().filter(|member| **member == state).count() as u64;
        story.count("resyncs completed", self.shared.resyncs_completed());
        story.count("rebuilds completed", self.shared.rebuilds_completed());
        let report = self.shared.check_report();
        story.count("checks completed", u64::from(report.is_complete));
        story.count("arrays that failed", u64::from(self.shared.failure().is_some()));
        story.count("members that failed", is(MemberState::Failed));
        story.count("reads from other copies", self.shared.reads_from_other_copies());
        story.count("boots that end in sync", u64::from(wanted.resync_from == IN_SYNC));
        for slot in 0..self.shared.geometry().members() {
            story.count("writes without space", self.shared.member_errors(slot).no_space);
        }
        drop(story);
        self.world.stop();
        let agrees = report.mismatch_sectors == 0 || self.is_tainted.get();
        assert!(agrees, "a check finds what does not agree: {report:?}");
    }

    /// Lets the hosts finish, and then so much time pass.
    pub(crate) fn rest(&self, nanoseconds: u64) {
        let busy = Rc::clone(&self.busy_hosts);
        let failure = || self.shared.failure();
        assert!(self.world.run_until(|| busy.get() == 0), "a request hangs: {:?}", failure());
        let world = Rc::clone(&self.world);
        self.run("the rest", async move { world.sleep_ns(nanoseconds).await });
    }

    /// Lets things happen for so many steps.
    pub(crate) fn run_for(&self, steps: u64) {
        self.world.run_for(steps);
    }
}

/// Bytes in sectors.
pub(crate) fn sectors(bytes: u64) -> usize {
    bytes as usize / SECTOR_BYTES
}
