//! Properties in every state, reset, shutdown, keep alive.
use super::*;

fn get(offset: u32, size: PropertySize) -> FabricsCommand {
    FabricsCommand::PropertyGet { offset, size }
}

#[test]
fn properties_have_their_sizes_and_no_others_exist() {
    let mut host = Host::nvm();
    let invalid = generic(Generic::InvalidField);
    for offset in 0..0x100 {
        for &size in PropertySize::ALL {
            let exists = Property::from_raw(offset).is_some_and(|p| p.size() == size);
            let answer = host.fabrics(get(offset, size));
            assert_eq!(answer.is_ok(), exists, "{offset:#x} {size:?}");
            if !exists {
                assert_eq!(answer, invalid);
            }
        }
    }
    assert_eq!(host.fabrics(get(u32::MAX, PropertySize::Four)), invalid);
}

#[test]
fn only_cc_can_be_set() {
    let mut host = Host::nvm();
    for offset in (0..0x100).filter(|&offset| offset != Property::Cc.raw()) {
        let set = FabricsCommand::PropertySet { offset, size: PropertySize::Four, value: 1 };
        assert_eq!(host.fabrics(set), generic(Generic::InvalidField), "{offset:#x}");
    }
    let offset = Property::Cc.raw();
    let wide = FabricsCommand::PropertySet { offset, size: PropertySize::Eight, value: 0 };
    assert_eq!(host.fabrics(wide), generic(Generic::InvalidField));
    assert!(host.csts().rdy());
}

#[test]
fn what_was_set_is_read_back() {
    let mut host = Host::connected(Kind::Nvm(subsystem()), 0);
    for value in [0x0046_0000, 0x0046_0001, 0x0046_4001] {
        host.set_cc(value | 0xAAAA_0000_0000_0000).unwrap();
        assert_eq!(host.fabrics(get(Property::Cc.raw(), PropertySize::Four)), Ok(value));
    }
}

#[test]
fn a_controller_is_enabled_only_as_it_can_run() {
    let mut host = Host::connected(Kind::Nvm(subsystem()), 0);
    for unsupported in [
        0x0046_0061, // command set by profile
        0x0046_0081, // 8 KiB pages
        0x0046_0801, // weighted round robin
        0x0047_0001, // 128-byte submission entries
        0x0056_0001, // 32-byte completion entries
        0x0000_0001, // no entry sizes
        0x0146_0001, // ready before media
        0x0046_C001, // reserved shutdown notification
    ] {
        assert_eq!(host.set_cc(unsupported), generic(Generic::InvalidField), "{unsupported:#x}");
        assert!(!host.csts().rdy());
    }
    host.enable();
    assert!(host.csts().rdy());
}

#[test]
fn a_discovery_controller_needs_no_entry_sizes() {
    let via = "192.0.2.10:8009".parse().unwrap();
    let mut host = Host::connected(Kind::Discovery { service: service(), via }, 0);
    host.set_cc(1).unwrap();
    assert!(host.csts().rdy());
}

#[test]
fn admin_commands_wait_for_ready_and_properties_do_not() {
    let mut host = Host::connected(Kind::Nvm(subsystem()), 0);
    let sequence = generic(Generic::CommandSequenceError);
    assert_eq!(host.admin(AdminCommand::KeepAlive), sequence);
    assert_eq!(host.get_feature(FeatureId::KeepAliveTimer), sequence);
    assert_eq!(host.run(Sqe::new(0xFF, 0), Data::None), sequence, "before its opcode counts");
    assert!(host.fabrics(get(0, PropertySize::Eight)).is_ok());
    host.enable();
    assert_eq!(host.admin(AdminCommand::KeepAlive), Ok(0));
    // In and after a shutdown the queue still answers.
    host.set_cc(0x0046_4001).unwrap();
    assert_eq!(host.admin(AdminCommand::KeepAlive), Ok(0));
    assert_eq!(host.csts().shst(), 1);
    host.controller.handle_shutdown_done();
    assert_eq!(host.csts().shst(), 2);
    host.identify(Cns::Controller, 0).unwrap();
}

#[test]
fn a_reset_closes_io_queues_and_forgets() {
    let mut host = Host::nvm();
    host.set_feature(FeatureId::AsyncEventConfiguration, 0x100).unwrap();
    host.set_feature(FeatureId::NumberOfQueues, 0).unwrap();
    let first = host.request_event();
    let second = host.request_event();
    host.connect_io(1, 31).unwrap();
    host.set_cc(0x0046_0000).unwrap();
    assert_eq!(host.controller.poll_effect(), Some(Effect::CloseIoQueues));
    assert_eq!(host.controller.poll_effect(), None);
    assert_eq!(host.csts().raw(), 0);
    for cid in [first, second] {
        let ended = host.controller.poll_completion().unwrap();
        assert_eq!((ended.cid(), ended.status()), (cid, Generic::AbortedSqDeletion.into()));
    }
    host.controller.handle_io_queue_closed(1);

    host.enable();
    assert!(host.csts().rdy());
    assert_eq!(host.get_feature(FeatureId::AsyncEventConfiguration), Ok(0));
    assert_eq!(host.get_feature(FeatureId::NumberOfQueues), Ok(0x007F_007F));
    assert!(host.connect_io(2, 31).is_ok(), "the one-queue limit is gone");
    host.request_event();
    assert_eq!(host.event(), None);
}

#[test]
fn shutdowns_are_normal_or_abrupt_and_end_with_a_reset() {
    for (cc, flush) in [(0x0046_4001, true), (0x0046_8001, false)] {
        let mut host = Host::nvm();
        host.set_cc(cc).unwrap();
        // Written again while it goes on: nothing new.
        host.set_cc(cc).unwrap();
        assert_eq!(host.controller.poll_effect(), Some(Effect::Shutdown { flush }));
        assert_eq!(host.controller.poll_effect(), None);
        assert!(!host.controller.is_running());
        host.controller.handle_shutdown_done();
        assert_eq!(host.csts().shst(), 2);
        host.set_cc(0x0046_0000).unwrap();
        assert_eq!(host.csts().raw(), 0);
        // A report that comes too late changes nothing.
        host.enable();
        host.controller.handle_shutdown_done();
        assert_eq!(host.csts().shst(), 0);
        assert!(host.controller.is_running());
    }
}

#[test]
fn a_shutdown_of_a_disabled_controller_ends_too() {
    let mut host = Host::connected(Kind::Nvm(subsystem()), 0);
    host.set_cc(0x0046_4000).unwrap();
    assert_eq!(host.controller.poll_effect(), Some(Effect::Shutdown { flush: true }));
    host.controller.handle_shutdown_done();
    assert_eq!(host.csts().shst(), 2);
}

#[test]
fn a_host_that_falls_silent_is_given_up() {
    let mut host = Host::nvm();
    let timeout = Duration::from_millis(5000);
    assert_eq!(host.controller.poll_timeout(), Some(host.now + timeout));
    host.now += Duration::from_millis(4999);
    // Other commands do not count while the controller is ready.
    host.identify(Cns::Controller, 0).unwrap();
    host.csts();
    assert_eq!(host.controller.poll_timeout(), Some(host.now + Duration::from_millis(1)));
    host.admin(AdminCommand::KeepAlive).unwrap();
    assert_eq!(host.controller.poll_timeout(), Some(host.now + timeout));
    host.now += timeout;
    host.controller.handle_timeout(host.now);
    let reason = CloseReason::KeepAliveExpired;
    assert_eq!(host.controller.poll_effect(), Some(Effect::CloseAssociation(reason)));
    assert!(host.csts().cfs());
    assert_eq!(host.admin(AdminCommand::KeepAlive), generic(Generic::CommandSequenceError));
    assert!(host.connect_io(1, 31).is_err());
}

#[test]
fn a_host_that_only_connects_is_given_up_too() {
    let mut host = Host::connected(Kind::Nvm(subsystem()), 1000);
    host.now += Duration::from_millis(900);
    host.csts();
    host.now += Duration::from_millis(900);
    host.controller.handle_timeout(host.now);
    assert_eq!(host.controller.poll_effect(), None, "it did something");
    host.now += Duration::from_millis(100);
    host.controller.handle_timeout(host.now);
    assert!(host.controller.poll_effect().is_some());
}

#[test]
fn keep_alive_is_honoured_on_discovery_controllers() {
    let via = "192.0.2.10:8009".parse().unwrap();
    let mut host = Host::connected(Kind::Discovery { service: service(), via }, 30_000);
    host.enable();
    host.now += Duration::from_secs(29);
    host.admin(AdminCommand::KeepAlive).unwrap();
    host.now += Duration::from_secs(29);
    host.controller.handle_timeout(host.now);
    assert_eq!(host.controller.poll_effect(), None);
    host.now += Duration::from_secs(1);
    host.controller.handle_timeout(host.now);
    assert!(host.controller.poll_effect().is_some());
    // Without a timeout there is no timer.
    assert_eq!(Host::discovery().controller.poll_timeout(), None);
}
