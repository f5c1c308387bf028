//! A member's drive for its metadata, which answers in time.
//!
//! The system calls that read and write superblocks wait for as long as the drive does. Here a thread
//! of the drive's own waits, and whoever asked is told after the member's timeout that it has failed:
//! a drive that hangs must not keep the others from recording that it does. Until the thread is back
//! the drive fails everything at once; it may still write what it was asked to, and is owned until
//! then.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use raidfabric_raid::device::{Medium, OpenDevice};

/// What a drive's thread does.
type Job<D> = Box<dyn FnOnce(&D) + Send>;

/// See the file's head.
#[derive(Debug)]
pub struct Patient<D> {
    device: Arc<D>,
    timeout: Duration,
    /// A request was given up.
    gave_up: AtomicBool,
    /// Requests that the thread has not done yet.
    pending: Arc<AtomicUsize>,
    /// The thread, once there has been something to do.
    jobs: OnceLock<mpsc::Sender<Job<D>>>,
}

/// A member's drive.
pub type PatientDevice = Patient<OpenDevice>;

impl<D> Deref for Patient<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.device
    }
}

impl<D: Medium + Send + Sync + 'static> Patient<D> {
    /// Takes a drive, which may take so long for a request.
    pub fn new(device: D, timeout: Duration) -> Self {
        let (gave_up, pending) = Default::default();
        Self { device: Arc::new(device), timeout, gave_up, pending, jobs: OnceLock::new() }
    }

    fn jobs(&self) -> io::Result<&mpsc::Sender<Job<D>>> {
        if let Some(jobs) = self.jobs.get() {
            return Ok(jobs);
        }
        let (jobs, todo) = mpsc::channel::<Job<D>>();
        let device = Arc::clone(&self.device);
        std::thread::Builder::new().name("raidfabric-drive".into()).spawn(move || {
            // Ends when the drive is let go of.
            while let Ok(job) = todo.recv() {
                job(&device);
            }
        })?;
        Ok(self.jobs.get_or_init(|| jobs))
    }

    /// Has the thread do something, and waits for it as long as the timeout.
    fn within_time<T: Send + 'static>(
        &self,
        work: impl FnOnce(&D) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let too_late = || io::Error::from_raw_os_error(libc::ETIMEDOUT);
        if self.gave_up.load(Ordering::Acquire) {
            if self.pending.load(Ordering::Acquire) > 0 {
                return Err(too_late());
            }
            self.gave_up.store(false, Ordering::Release);
        }
        let (answer, answered) = mpsc::channel();
        let pending = Arc::clone(&self.pending);
        let job: Job<D> = Box::new(move |device| {
            let result = work(device);
            pending.fetch_sub(1, Ordering::AcqRel);
            // Perhaps nobody waits any more.
            let _ = answer.send(result);
        });
        let jobs = self.jobs()?;
        self.pending.fetch_add(1, Ordering::AcqRel);
        jobs.send(job).map_err(|_| io::Error::other("the drive's thread has ended"))?;
        answered.recv_timeout(self.timeout).unwrap_or_else(|error| match error {
            mpsc::RecvTimeoutError::Disconnected => {
                Err(io::Error::other("the drive's thread has ended"))
            }
            mpsc::RecvTimeoutError::Timeout => {
                self.gave_up.store(true, Ordering::Release);
                Err(too_late())
            }
        })
    }
}

impl<D: Medium + Send + Sync + 'static> Medium for Patient<D> {
    fn name(&self) -> String {
        self.device.name()
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut read = vec![0; buf.len()];
        let read = self.within_time(move |device| {
            device.read_at(offset_bytes, &mut read)?;
            Ok(read)
        })?;
        buf.copy_from_slice(&read);
        Ok(())
    }

    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        let data = data.to_vec();
        self.within_time(move |device| device.write_durable(offset_bytes, &data))
    }

    fn flush(&self) -> io::Result<()> {
        self.within_time(Medium::flush)
    }

    /// Takes as long as it takes: only a new array is zeroed.
    fn zero_cheaply(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        self.device.zero_cheaply(offset_bytes, len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Instant;

    /// A drive that waits for a permission before each write.
    struct Hanging {
        may_write: Mutex<mpsc::Receiver<()>>,
        written: Arc<Mutex<Vec<u64>>>,
    }

    impl Medium for Hanging {
        fn name(&self) -> String {
            "hanging".into()
        }

        fn size_bytes(&self) -> u64 {
            4096
        }

        fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<()> {
            buf.fill(7);
            Ok(())
        }

        fn write_durable(&self, offset_bytes: u64, _: &[u8]) -> io::Result<()> {
            let _ = self.may_write.lock().unwrap().recv();
            self.written.lock().unwrap().push(offset_bytes);
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(libc::EIO))
        }

        fn zero_cheaply(&self, _: u64, _: u64) -> io::Result<bool> {
            Ok(true)
        }
    }

    /// One drive that hung while its superblock was written kept the array from recording anything,
    /// and every host's writes waited for that.
    #[test]
    fn a_drive_that_hangs_fails_in_time_and_at_once_until_it_is_back() {
        let (permit, may_write) = mpsc::channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let drive = Hanging { may_write: Mutex::new(may_write), written: Arc::clone(&written) };
        let drive = Patient::new(drive, Duration::from_millis(200));
        let mut buf = [0; 3];
        drive.read_at(0, &mut buf).unwrap();
        assert_eq!(buf, [7; 3]);
        assert_eq!(drive.flush().unwrap_err().raw_os_error(), Some(libc::EIO));
        permit.send(()).unwrap();
        drive.write_durable(1, b"x").unwrap();

        let late = |error: io::Error| error.raw_os_error() == Some(libc::ETIMEDOUT);
        assert!(late(drive.write_durable(2, b"x").unwrap_err()));
        let start = Instant::now();
        assert!(late(drive.read_at(0, &mut buf).unwrap_err()));
        assert!(start.elapsed() < Duration::from_millis(150), "it is not waited for again");
        permit.send(()).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while drive.read_at(0, &mut buf).is_err() {
            assert!(Instant::now() < end, "it is back, and not believed");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(*written.lock().unwrap(), [1, 2], "the late write came after all");
    }
}
