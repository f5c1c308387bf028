//! The same workload over queue depths and numbers of workers, as reviews of RAID adapters
//! print it.

use serde::Serialize;

use super::report::Report;
use super::worker::run;
use super::workload::{Progress, Workload};
use crate::Error;

/// Queue depths of each worker's connection.
pub(super) const DEPTHS: [u16; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Numbers of workers, each with one connection.
pub(super) const WORKERS: [u16; 4] = [1, 2, 4, 8];

/// One cell of the table.
#[derive(Clone, Debug, Serialize)]
pub struct SweepRow {
    /// Queue depth of each connection.
    pub queue_depth: u16,
    /// Workers, and connections.
    pub workers: u16,
    /// What was measured; `None` if the controller does not allow it.
    pub report: Option<Report>,
    /// Why there is no report.
    pub skipped: Option<String>,
}

/// A whole sweep (`raidfabric.bench-sweep/1`).
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport {
    /// `raidfabric.bench-sweep/1`.
    pub schema: &'static str,
    /// By workers, then by queue depth.
    pub rows: Vec<SweepRow>,
}

/// Runs `workload` with every combination of 1 to 512 commands per connection and 1 to 8 workers.
/// `progress` gets the number of the run, how many there are, and that run's progress. A depth or
/// number of queues that the controller does not have is skipped.
///
/// # Errors
/// As [`run`].
pub fn sweep(
    workload: &Workload,
    progress: &mut dyn FnMut(usize, usize, &Progress),
) -> Result<SweepReport, Error> {
    let combinations: Vec<(u16, u16)> = WORKERS
        .iter()
        .flat_map(|workers| DEPTHS.iter().map(move |depth| (*workers, *depth)))
        .collect();
    let total = combinations.len();
    let mut rows = Vec::with_capacity(total);
    for (number, (workers, queue_depth)) in combinations.into_iter().enumerate() {
        let one = Workload { workers, connections: workers, queue_depth, ..workload.clone() };
        let outcome = run(&one, &mut |now| progress(number, total, now));
        let (report, skipped) = match outcome {
            Ok(report) => (Some(report), None),
            Err(Error::Unsupported(reason)) => (None, Some(reason)),
            Err(error) => return Err(error),
        };
        rows.push(SweepRow { queue_depth, workers, report, skipped });
    }
    Ok(SweepReport { schema: "raidfabric.bench-sweep/1", rows })
}
