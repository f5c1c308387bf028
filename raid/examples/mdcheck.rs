//! A hand tool for tests beside Linux md: creates arrays, fills them with a pattern and
//! verifies it, on the members or through a block device that md made of them.
//!
//! The way from an array's bytes to its members' is written down here once more, in the
//! plainest form, so that it checks the engine's rather than repeats it.

use raidfabric_raid::assemble::{
    ArrayHandle, Expected, NewArray, create, decide, describe, examine, plan_assemble, plan_create,
    wipe,
};
use raidfabric_raid::device::{AlignedBuffer, Intent, Medium, OpenDevice, open};
use raidfabric_raid::metadata::private::PrivateArea;
use raidfabric_raid::metadata::{Consistency, Level};
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: mdcheck VERB …
  create LEVEL CHUNK_KIB DRIVE…  a new array on blank drives
  examine DRIVE…                 what the drives are together
  describe DRIVE…                what each drive holds
  fill SEED DRIVE…               write the pattern to all copies, and stop cleanly
  fill-dirty SEED DRIVE…         the same without stopping cleanly
  verify SEED DRIVE…             every copy has the pattern
  fill-device SEED DEVICE        write the pattern to a block device
  verify-device SEED DEVICE      a block device has the pattern
  wipe DRIVE…                    make the drives blank";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Err(error) = run(&arguments) {
        eprintln!("mdcheck: {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["create", level, chunk_kib, drives @ ..] => make(level, chunk_kib.parse()?, drives),
        ["examine", drives @ ..] => show(drives),
        ["describe", drives @ ..] => {
            for drive in drives {
                println!("{}", describe(Path::new(drive))?);
            }
            Ok(())
        }
        ["fill", seed, drives @ ..] => fill(seed.parse()?, drives, true),
        ["fill-dirty", seed, drives @ ..] => fill(seed.parse()?, drives, false),
        ["verify", seed, drives @ ..] => verify(seed.parse()?, drives),
        ["fill-device", seed, device] => fill_device(seed.parse()?, device),
        ["verify-device", seed, device] => verify_device(seed.parse()?, device),
        ["wipe", drives @ ..] => {
            for drive in drives {
                wipe(&open(Path::new(drive), Intent::Own)?)?;
            }
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

fn open_all(drives: &[&str]) -> Result<Vec<OpenDevice>> {
    let open = |drive: &&str| Ok(open(Path::new(drive), Intent::Own)?);
    drives.iter().map(open).collect()
}

fn level(name: &str) -> Result<Level> {
    let number = name.trim_start_matches("raid").parse()?;
    Level::from_number(number).ok_or_else(|| format!("{name}: no such level").into())
}

fn make(name: &str, chunk_kib: u64, drives: &[&str]) -> Result<()> {
    let level = level(name)?;
    let new = NewArray {
        name: "check".into(),
        homehost: Some("mdcheck".into()),
        level,
        chunk_bytes: chunk_kib << 10,
        uuid: None,
        // Nothing here keeps a bitmap or a log.
        consistency: level.is_redundant().then_some(Consistency::Resync),
        assume_clean: false,
    };
    let devices = open_all(drives)?;
    let examined: Vec<_> = devices.iter().map(examine).collect::<std::result::Result<_, _>>()?;
    // `decide` is what the daemon asks; on blank drives it comes to the same.
    decide(&examined, &Expected::default(), &new)?;
    let handle = create(&plan_create(&examined, &new)?, devices)?;
    report(&handle);
    Ok(())
}

fn assemble(drives: &[&str]) -> Result<ArrayHandle<OpenDevice>> {
    let devices = open_all(drives)?;
    let examined: Vec<_> = devices.iter().map(examine).collect::<std::result::Result<_, _>>()?;
    let plan = plan_assemble(&examined, &Expected::default())?;
    Ok(ArrayHandle::assemble(&plan, &examined, devices).0)
}

fn show(drives: &[&str]) -> Result<()> {
    report(&assemble(drives)?);
    Ok(())
}

fn report(handle: &ArrayHandle<OpenDevice>) {
    let info = handle.info();
    let geometry = &info.geometry;
    println!(
        "{} {} of {}, consistency {}, chunk {}, component {}, size {}, events {}, resync from {:?}, uuid {}",
        info.set_name,
        geometry.level,
        geometry.members,
        info.consistency,
        geometry.chunk_bytes,
        geometry.component_bytes,
        info.size_bytes(),
        info.events,
        info.resync_from_bytes,
        info.uuid,
    );
    for (slot, member) in handle.members().iter().enumerate() {
        let private = match &member.replica().private {
            PrivateArea::Absent => "absent".to_owned(),
            PrivateArea::Void { last, .. } => format!("void after {}", last.generation),
            PrivateArea::Believed { header, .. } => format!("believed at {}", header.generation),
        };
        let name = member.medium().name();
        println!("  {slot}: {name}, data at {}, private {private}", member.data_offset_bytes());
    }
}

/// Where a piece of the array lies: slots, and the offset in each one's data.
fn copies(handle: &ArrayHandle<OpenDevice>, piece: u64, piece_bytes: u64) -> Vec<(usize, u64)> {
    let geometry = &handle.info().geometry;
    let members = geometry.members as u64;
    let at = |position: u64| ((position % members) as usize, position / members * piece_bytes);
    match geometry.level {
        Level::Raid1 => (0..geometry.members).map(|slot| (slot, piece * piece_bytes)).collect(),
        Level::Raid10 => vec![at(2 * piece), at(2 * piece + 1)],
        _ => vec![at(piece)],
    }
}

/// Pieces of the array, each within one chunk.
fn piece_bytes(handle: &ArrayHandle<OpenDevice>) -> u64 {
    match handle.info().geometry.chunk_bytes {
        0 => 64 << 10,
        chunk => chunk,
    }
}

/// Eight bytes at a time: no two places, and no two seeds, have the same.
fn pattern(seed: u64, offset_bytes: u64, buf: &mut [u8]) {
    for (i, word) in buf.chunks_exact_mut(8).enumerate() {
        let place = offset_bytes + 8 * i as u64;
        let value = (place ^ seed << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn fill(seed: u64, drives: &[&str], clean: bool) -> Result<()> {
    let mut handle = assemble(drives)?;
    handle.mark_active()?;
    let piece_bytes = piece_bytes(&handle);
    let mut buf = AlignedBuffer::zeroed(piece_bytes as usize);
    for piece in 0..handle.info().size_bytes() / piece_bytes {
        pattern(seed, piece * piece_bytes, &mut buf);
        for (slot, offset) in copies(&handle, piece, piece_bytes) {
            let member = handle.members().get(slot).ok_or("slot")?;
            let at = member.data_offset_bytes() + offset;
            let mut rest: &[u8] = &buf;
            let mut done = 0;
            while !rest.is_empty() {
                let n = rustix::io::pwrite(&member.medium().descriptors().io, rest, at + done)?;
                done += n as u64;
                rest = rest.get(n..).unwrap_or_default();
            }
        }
    }
    if clean {
        // Every block of every copy has just been written.
        handle.checkpoint_resync(u64::MAX)?;
        handle.mark_clean()?;
    } else {
        for member in handle.members() {
            member.medium().flush()?;
        }
    }
    report(&handle);
    Ok(())
}

fn verify(seed: u64, drives: &[&str]) -> Result<()> {
    let handle = assemble(drives)?;
    report(&handle);
    let piece_bytes = piece_bytes(&handle);
    let mut expected = vec![0; piece_bytes as usize];
    let mut found = vec![0; piece_bytes as usize];
    for piece in 0..handle.info().size_bytes() / piece_bytes {
        pattern(seed, piece * piece_bytes, &mut expected);
        for (slot, offset) in copies(&handle, piece, piece_bytes) {
            let member = handle.members().get(slot).ok_or("slot")?;
            member.medium().read_at(member.data_offset_bytes() + offset, &mut found)?;
            if found != expected {
                return Err(format!("byte {} differs on slot {slot}", piece * piece_bytes).into());
            }
        }
    }
    println!("{} bytes verified", handle.info().size_bytes());
    Ok(())
}

fn device_bytes(device: &File) -> Result<u64> {
    Ok(rustix::fs::seek(device, rustix::fs::SeekFrom::End(0))?)
}

fn fill_device(seed: u64, path: &str) -> Result<()> {
    let device = File::options().write(true).open(path)?;
    let mut buf = vec![0; 64 << 10];
    let size = device_bytes(&device)?;
    for at in (0..size).step_by(buf.len()) {
        pattern(seed, at, &mut buf);
        let len = usize::try_from(size - at)?.min(buf.len());
        device.write_all_at(buf.get(..len).unwrap_or_default(), at)?;
    }
    device.sync_all()?;
    println!("{size} bytes written");
    Ok(())
}

fn verify_device(seed: u64, path: &str) -> Result<()> {
    let device = File::open(path)?;
    let (mut expected, mut found) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let size = device_bytes(&device)?;
    for at in (0..size).step_by(expected.len()) {
        pattern(seed, at, &mut expected);
        let len = usize::try_from(size - at)?.min(expected.len());
        device.read_exact_at(found.get_mut(..len).unwrap_or_default(), at)?;
        if found.get(..len) != expected.get(..len) {
            return Err(format!("{path}: the 64 KiB from byte {at} differ").into());
        }
    }
    println!("{size} bytes verified on {path}");
    Ok(())
}
