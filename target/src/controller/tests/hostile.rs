//! No bytes of a peer make the controller panic, grow, or answer wrongly.
use super::*;
use proptest::prelude::*;
use raidfabric_protocol::nvme::admin::AdminOpcode;

/// Entries near the legal ones: a served opcode more often than not, small
/// numbers where small numbers mean something.
fn entry() -> impl Strategy<Value = Sqe> {
    let opcode = prop_oneof![
        3 => proptest::sample::select(AdminOpcode::ALL).prop_map(AdminOpcode::raw),
        2 => Just(FABRICS_OPCODE),
        1 => any::<u8>(),
    ];
    let dword = || prop_oneof![0u32..12, Just(0x14), Just(0x46_0001), Just(NSID_ALL), any::<u32>()];
    let features = prop_oneof![0u32..0x90, any::<u32>()];
    let length = prop_oneof![Just(0u32), Just(512), Just(4096), 0u32..9000];
    let dwords = (dword(), features, dword(), dword(), dword(), dword());
    let start = (opcode, prop_oneof![4 => Just(0x40u8), 1 => any::<u8>()], dword());
    (start, dwords, length, any::<bool>()).prop_map(
        |((opcode, flags, nsid), (d10, f10, d11, d12, d13, d14), length, feature)| {
            let mut sqe = Sqe::new(opcode, 0);
            sqe.flags = raidfabric_protocol::nvme::sqe::SqeFlags::from_raw(flags);
            sqe.nsid = nsid.into();
            sqe.dptr = Sgl::transport(length);
            sqe.cdw10 = if feature { f10 } else { d10 }.into();
            (sqe.cdw11, sqe.cdw12) = (d11.into(), d12.into());
            (sqe.cdw13, sqe.cdw14) = (d13.into(), d14.into());
            sqe
        },
    )
}

/// What happens beside commands.
#[derive(Debug, Clone, Copy)]
enum Other {
    Namespaces(u32),
    Discovery(u64),
    Health(u16),
    Time(u64),
    ShutdownDone,
    ConnectIo(u16),
}

fn other() -> impl Strategy<Value = Other> {
    prop_oneof![
        (0u32..4).prop_map(Other::Namespaces),
        (0u64..4).prop_map(Other::Discovery),
        any::<u16>().prop_map(Other::Health),
        (0u64..100_000).prop_map(Other::Time),
        Just(Other::ShutdownDone),
        (0u16..5).prop_map(Other::ConnectIo),
    ]
}

impl Host {
    fn happen(&mut self, other: Other) {
        match other {
            Other::Namespaces(count) => {
                let all = (1..=count).map(|nsid| namespace(nsid, 512)).collect();
                self.controller.handle_event(Event::Subsystem(subsystem_with(all)));
            }
            Other::Discovery(generation) => {
                let mut new = (*service()).clone();
                new.generation = generation;
                new.listeners.truncate(generation as usize % 2);
                self.controller.handle_event(Event::Discovery(Arc::new(new)));
            }
            Other::Health(temperature_kelvin) => {
                let health = Health { temperature_kelvin, ..Health::default() };
                self.controller.handle_event(Event::Health(Box::new(health)));
            }
            Other::Time(milliseconds) => {
                self.now += Duration::from_millis(milliseconds);
                self.controller.handle_timeout(self.now);
            }
            Other::ShutdownDone => self.controller.handle_shutdown_done(),
            Other::ConnectIo(qid) => {
                let _ = self.connect_io(qid, 31);
            }
        }
    }

    /// Runs any entry as a transport would: its data as its pointer says.
    /// Gives how many commands are held now.
    fn throw(&mut self, mut sqe: Sqe, held: &mut BTreeSet<u16>) {
        self.cid = self.cid.wrapping_add(1);
        sqe.cid = self.cid.into();
        let transfer = admin_transfer(&sqe, 0, Limits::default().max_transfer_bytes);
        let mut buffer = match transfer {
            Ok(Transfer::ToHost { length_bytes }) => vec![0xEE; length_bytes as usize],
            Ok(Transfer::FromHost(data)) => vec![0x01; data.length_bytes() as usize],
            Ok(Transfer::None) => vec![],
            Err(status) => {
                assert!(!status.is_success());
                return;
            }
        };
        let data = match transfer {
            Ok(Transfer::ToHost { .. }) => Data::ToHost(&mut buffer),
            Ok(Transfer::FromHost(_)) => Data::FromHost(&buffer),
            _ => Data::None,
        };
        let permit = Permit::new(self.cid);
        match self.controller.handle_admin(self.now, permit, &sqe, data, &mut self.world) {
            AdminOutcome::Complete(completion) => assert_eq!(completion.cid(), self.cid),
            AdminOutcome::Held => assert!(held.insert(self.cid)),
        }
        while let Some(completion) = self.controller.poll_completion() {
            assert!(held.remove(&completion.cid()), "answered twice");
        }
        assert!(held.len() <= 4);
        let mut effects = 0;
        while self.controller.poll_effect().is_some() {
            effects += 1;
        }
        assert!(effects <= 4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_breaks_the_controller(
        steps in proptest::collection::vec((entry(), proptest::option::of(other())), 1..60),
        is_io: bool,
    ) {
        let mut host = if is_io { Host::nvm() } else { Host::discovery() };
        let mut held = BTreeSet::new();
        for (sqe, other) in steps {
            host.throw(sqe, &mut held);
            if let Some(other) = other {
                host.happen(other);
            }
        }
    }

    #[test]
    fn random_entries_are_answered(bytes: [u8; 64], is_io: bool) {
        let mut host = if is_io { Host::nvm() } else { Host::discovery() };
        host.throw(Sqe::from_bytes(bytes), &mut BTreeSet::new());
    }

    #[test]
    fn random_connects_are_answered(
        bytes: [u8; 64],
        data in proptest::collection::vec(any::<u8>(), 1024),
        connect: bool,
    ) {
        let mut sqe = Sqe::from_bytes(bytes);
        if connect {
            sqe.opcode = FABRICS_OPCODE;
            sqe.nsid = U32::new(1);
        }
        let mut host = Host::nvm();
        if let Ok(request) = Request::parse(&sqe, &data) {
            let kind = Kind::Nvm(subsystem());
            let _ = Controller::connect(&request, kind, 1, host.now);
            prop_assert!(host.controller.connect_io_queue(&request).is_err());
        }
    }
}
