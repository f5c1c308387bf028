//! Creating and assembling on drives in memory and on files; refusals; crash images.

use super::test_medium::TestMedium;
use super::*;
use crate::device::{Intent, Medium, OpenDevice, open};
use crate::metadata::Level;

const MIB: u64 = 1 << 20;

fn new_array(level: Level) -> NewArray {
    NewArray {
        name: "fast".into(),
        homehost: Some("box".into()),
        level,
        chunk_bytes: 64 << 10,
        uuid: None,
    }
}

fn look(drives: &[TestMedium]) -> Vec<Examined> {
    drives.iter().map(|d| examine_medium(d).unwrap()).collect()
}

fn create_on(drives: &[TestMedium], level: Level) -> ArrayHandle<TestMedium> {
    let plan = plan_create(&look(drives), &new_array(level)).unwrap();
    create(&plan, drives.to_vec()).unwrap()
}

#[test]
fn creates_on_files_and_finds_the_array_again_in_any_order() {
    let dir = tempfile::Builder::new().tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let paths: Vec<_> = (0..4).map(|i| dir.path().join(format!("{i}.img"))).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(64 * MIB).unwrap();
    }
    let open_all = |paths: &[std::path::PathBuf]| -> Vec<OpenDevice> {
        paths.iter().map(|p| open(p, Intent::Own).unwrap()).collect()
    };
    let devices = open_all(&paths);
    let examined: Vec<_> = devices.iter().map(|d| examine(d).unwrap()).collect();
    let Ok(Decision::Create(plan)) =
        decide(&examined, &Expected::default(), &new_array(Level::Raid10))
    else {
        panic!("blank files are there to be created on");
    };
    let mut handle = create(&plan, devices).unwrap();
    assert_eq!(handle.resync_from_bytes(), None, "holes are zeros, so the copies agree");
    handle.mark_active().unwrap();
    handle.mark_clean().unwrap();
    let info = handle.info().clone();
    drop(handle);

    let mut paths = paths;
    paths.rotate_left(1);
    let devices = open_all(&paths);
    let examined: Vec<_> = devices.iter().map(|d| examine(d).unwrap()).collect();
    let plan = plan_assemble(&examined, &Expected { uuid: Some(info.uuid), ..Expected::default() });
    let plan = plan.unwrap();
    assert_eq!(plan.info, info);
    assert_eq!(plan.order, [3, 0, 1, 2]);
    let (handle, unused) = ArrayHandle::assemble(&plan, &examined, devices);
    assert!(unused.is_empty());
    let names: Vec<_> = handle.members().iter().map(|m| m.medium().name()).collect();
    let expected: Vec<_> =
        (0..4).map(|i| dir.path().join(format!("{i}.img")).display().to_string()).collect();
    assert_eq!(names, expected);
}
