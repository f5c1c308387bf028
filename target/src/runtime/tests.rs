//! The runtime against the kernel: a loopback connection, a file, a doorbell from another thread.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use raidfabric_raid::buffer::Pool;
use raidfabric_raid::drive::{Drive, DriveError};

use super::*;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn a_batch_of_more_pieces_than_one_message_takes_arrives_whole_and_in_order() {
    let (mut client, server) = pair();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        all
    });
    let expected = run(&CoreOptions::default(), || async {
        let pool = Pool::new(64 << 20, 1 << 20).unwrap();
        let socket = Socket::new(server);
        let mut batch = Batch::new();
        let mut expected = Vec::new();
        for round in 0..3u8 {
            for piece in 0..1500u32 {
                let header = [round, piece as u8, (piece >> 8) as u8];
                batch.header(|out| out.extend_from_slice(&header));
                expected.extend_from_slice(&header);
                let mut data = pool.allocate(4096).unwrap();
                data.fill(piece as u8 ^ round);
                expected.extend_from_slice(&data);
                batch.shared(data.freeze());
            }
            let (result, returned) = socket.send(batch).await;
            result.unwrap();
            batch = returned;
            assert!(batch.is_empty());
            assert_eq!(pool.in_use_bytes(), 0, "sent data is given back");
        }
        socket.finish_sending();
        expected
    })
    .unwrap();
    assert!(reader.join().unwrap() == expected);
}

#[test]
fn receives_what_is_there_or_fills_the_range() {
    let (mut client, server) = pair();
    let writer = std::thread::spawn(move || {
        client.write_all(&[1; 100]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        client.write_all(&[2; 50]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        client.write_all(&[3; 50]).unwrap();
    });
    run(&CoreOptions::default(), || async {
        let pool = Pool::new(1 << 20, 1 << 16).unwrap();
        let socket = Socket::new(server);
        let buffer = pool.allocate(4096).unwrap();
        let (result, buffer) = socket.receive(buffer, 0..4096, false).await;
        assert_eq!(result.unwrap(), 100);
        let (result, buffer) = socket.receive(buffer, 100..200, true).await;
        assert_eq!(result.unwrap(), 100);
        assert_eq!((buffer[99], buffer[100], buffer[199]), (1, 2, 3));
        let (result, buffer) = socket.receive(buffer, 0..8192, false).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(socket.receive(buffer, 0..1, false).await.0.unwrap(), 0, "the peer closed");
    })
    .unwrap();
    writer.join().unwrap();
}

#[test]
fn a_drive_reads_what_was_written_and_never_grows() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(directory.path().join("drive"))
        .unwrap();
    file.set_len(1 << 20).unwrap();
    let facts = DriveFacts { size_bytes: 1 << 20, block_size_bytes: 512, has_volatile_cache: true };
    run(&CoreOptions::default(), || async {
        let drive = UringDrive::new(OwnedFd::from(file), facts, TimeLimit::default());
        let pool = Pool::new(16 << 20, 1 << 20).unwrap();
        let mut data = pool.allocate(65536).unwrap();
        data.fill(0xA5);
        let data = data.freeze();
        drive.write(4096, data.clone(), false).await.unwrap();
        drive.write((1 << 20) - 65536, data.clone(), true).await.unwrap();
        drive.flush().await.unwrap();
        let past_end = drive.write((1 << 20) - 65536 + 512, data, false).await;
        assert_eq!(past_end, Err(DriveError::OutOfRange));
        drive.write_zeroes(8192, 4096, true).await.unwrap();

        let read = drive.read(4096, pool.allocate(65536).unwrap()).await.unwrap();
        assert!(read[..4096].iter().all(|&byte| byte == 0xA5));
        assert!(read[4096..8192].iter().all(|&byte| byte == 0));
        assert!(read[8192..].iter().all(|&byte| byte == 0xA5));
        let failure = drive.read(u64::MAX, pool.allocate(4096).unwrap()).await.unwrap_err();
        assert_eq!(failure.error, DriveError::OutOfRange);
    })
    .unwrap();
}

#[test]
fn a_doorbell_wakes_the_core_and_one_wake_may_stand_for_many() {
    let bell = Doorbell::new().unwrap();
    let ringer = bell.clone();
    let thread = std::thread::spawn(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(20));
            ringer.ring();
            ringer.ring();
        }
    });
    run(&CoreOptions::default(), || async {
        let listener = bell.listen().unwrap();
        for _ in 0..3 {
            tokio::time::timeout(Duration::from_secs(5), listener.rung()).await.unwrap().unwrap();
        }
    })
    .unwrap();
    thread.join().unwrap();
}

#[test]
fn spinning_ends_when_no_work_comes() {
    let options = CoreOptions::default();
    let turns = run(&options, || async {
        let awake = Awake::start(Some(Duration::from_micros(200))).unwrap();
        awake.saw_work();
        awake.saw_work();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = cpu_time();
        tokio::time::sleep(Duration::from_millis(200)).await;
        cpu_time() - before
    })
    .unwrap();
    assert!(turns < Duration::from_millis(50), "the core went on spinning: {turns:?}");
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_cpu_that_does_not_exist_is_named() {
    let options = CoreOptions { cpu: Some(1023), ..CoreOptions::default() };
    let error = run(&options, || async {}).unwrap_err();
    assert!(error.to_string().contains("CPU 1023"), "{error}");
}

/// A drive that does not answer keeps the buffer until it does; who waits goes on before. A pipe
/// that nobody writes to stands for it.
#[test]
fn an_operation_that_is_late_is_given_up_and_its_buffer_stays_out() {
    let (reader, mut writer) = io::pipe().unwrap();
    let facts = DriveFacts { size_bytes: 1 << 20, block_size_bytes: 512, has_volatile_cache: true };
    let limit = TimeLimit { timeout: Duration::from_secs(30), ..TimeLimit::default() };
    run(&CoreOptions::default(), || async {
        let drive = UringDrive::new(OwnedFd::from(reader), facts, limit.clone());
        let other_handle = drive.clone();
        let pool = Pool::new(1 << 20, 1 << 16).unwrap();
        let buffer = pool.allocate(512).unwrap();
        spawn(async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let (watch, now) = (Watch::of_this_core(), Instant::now());
            assert_eq!(watch.scan(now) + watch.scan(now + Duration::from_secs(29)), 0);
            assert_eq!(watch.scan(now + Duration::from_secs(30)), 1);
        });
        let failure = drive.read(0, buffer).await.unwrap_err();
        assert_eq!(failure.error, DriveError::TimedOut);
        assert!(failure.buffer.is_none() && pool.in_use_bytes() > 0);
        assert_eq!((other_handle.late_operations(), limit.late.count()), (1, 1));
        drop(drive);
        // It answers at last.
        writer.write_all(&[7; 512]).unwrap();
        while pool.in_use_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(other_handle.late_operations(), 0);
    })
    .unwrap();
}
