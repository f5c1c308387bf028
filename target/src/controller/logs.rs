//! Log pages: the state behind them, and reading a part of one.
//!
//! A host asks for any length from any offset that is a multiple of 4. What it
//! asks beyond the end of a page is zeros; an offset beyond the end is refused.
use super::Fault;
use super::features::{Features, capabilities};
use super::subsystem::{FIRMWARE, Subsystem};
use raidfabric_protocol::nvme::admin::{AdminOpcode, GetLogPage};
use raidfabric_protocol::nvme::feature::FeatureId;
use raidfabric_protocol::nvme::identify::{NSID_ALL, put_ascii};
use raidfabric_protocol::nvme::io::IoOpcode;
use raidfabric_protocol::nvme::log::*;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Entries that the error log keeps; ELPE is one less.
pub(super) const ERROR_ENTRIES: usize = 64;

/// What the SMART log says, measured by whoever has the drives and the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Critical warnings; the one about temperature is added by the thresholds.
    pub warning: CriticalWarning,
    /// Composite temperature in kelvin; 0 if not known.
    pub temperature_kelvin: u16,
    /// Remaining spare in percent, 0 to 100.
    pub available_spare_percent: u8,
    /// Spare threshold in percent, 0 to 100.
    pub spare_threshold_percent: u8,
    /// Estimated use of the drives' life in percent; 255 at most.
    pub percentage_used: u8,
    /// Read by hosts, in bytes.
    pub read_bytes: u128,
    /// Written by hosts, in bytes.
    pub written_bytes: u128,
    /// Read commands completed.
    pub read_commands: u128,
    /// Write commands completed.
    pub write_commands: u128,
    /// Time with commands outstanding.
    pub busy: Duration,
    /// Power cycles.
    pub power_cycles: u128,
    /// Time in operation.
    pub power_on: Duration,
    /// Shutdowns without notice.
    pub unsafe_shutdowns: u128,
    /// Unrecovered errors.
    pub media_errors: u128,
}

impl Default for Health {
    /// Nothing known, nothing wrong.
    fn default() -> Self {
        Self {
            warning: CriticalWarning::default(),
            temperature_kelvin: 0,
            available_spare_percent: 100,
            spare_threshold_percent: 0,
            percentage_used: 0,
            read_bytes: 0,
            written_bytes: 0,
            read_commands: 0,
            write_commands: 0,
            busy: Duration::ZERO,
            power_cycles: 0,
            power_on: Duration::ZERO,
            unsafe_shutdowns: 0,
            media_errors: 0,
        }
    }
}

impl Health {
    /// The critical warnings with the one about temperature, by the thresholds in force.
    pub(super) fn warning(&self, features: &Features, subsystem: &Subsystem) -> CriticalWarning {
        let kelvin = self.temperature_kelvin;
        let crossed = kelvin != 0
            && (kelvin >= features.over_kelvin(subsystem) || kelvin <= features.under_kelvin());
        self.warning.with_temperature(self.warning.temperature() || crossed)
    }
}

/// The error log: the newest errors, and how many there were.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    /// Newest first, at most [`ERROR_ENTRIES`].
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    /// Adds an error; its count is set here.
    pub(super) fn push(&mut self, mut entry: ErrorEntry) {
        self.count = self.count.wrapping_add(1).max(1);
        entry.error_count = self.count.into();
        self.entries.truncate(ERROR_ENTRIES - 1);
        self.entries.push_front(entry);
    }

    /// Errors so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Log page 01h.
    fn page(&self) -> Vec<u8> {
        let mut page = vec![0; ERROR_ENTRIES * size_of::<ErrorEntry>()];
        for (to, entry) in page.chunks_exact_mut(size_of::<ErrorEntry>()).zip(&self.entries) {
            to.copy_from_slice(entry.as_bytes());
        }
        page
    }
}

/// Namespaces that changed since the host last read log 04h.
#[derive(Debug, Default)]
pub(super) struct ChangedNamespaces(BTreeSet<u32>);

impl ChangedNamespaces {
    /// Adds one. Bounded by the number of NSIDs that the list has room for, and one more.
    pub(super) fn insert(&mut self, nsid: u32) {
        if self.0.len() <= CHANGED_NAMESPACES_MAX {
            self.0.insert(nsid);
        }
    }

    /// The host has read them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn page(&self) -> ChangedNamespacesLog {
        let mut page = ChangedNamespacesLog::default();
        if self.0.len() > CHANGED_NAMESPACES_MAX {
            if let Some(first) = page.nsids.first_mut() {
                *first = NSID_ALL.into();
            }
            return page;
        }
        for (to, nsid) in page.nsids.iter_mut().zip(&self.0) {
            *to = (*nsid).into();
        }
        page
    }
}

/// Whether a controller of this kind has a log page.
pub(super) fn is_supported(log: LogId, is_io: bool) -> bool {
    match log {
        LogId::SupportedLogPages
        | LogId::ErrorInformation
        | LogId::CommandEffects
        | LogId::FeatureEffects
        | LogId::MiCommandEffects => true,
        LogId::SmartHealth | LogId::FirmwareSlot | LogId::ChangedNamespaces => is_io,
        LogId::Discovery => !is_io,
    }
}

/// What the pages of a controller are made of.
pub(super) struct Sources<'a> {
    /// `None` on a discovery controller.
    pub(super) subsystem: Option<&'a Subsystem>,
    pub(super) features: &'a Features,
    pub(super) errors: &'a ErrorLog,
    pub(super) changed: &'a ChangedNamespaces,
    pub(super) health: Health,
    /// The discovery log for this host, empty on an I/O controller.
    pub(super) discovery: Vec<u8>,
}

/// Checks a Get Log Page and says which page it is.
pub(super) fn check(command: &GetLogPage, is_io: bool) -> Result<LogId, Fault> {
    let unknown = || Fault::at(CommandSpecific::InvalidLogPage.into(), Fault::CDW10);
    let log = LogId::from_raw(command.lid).ok_or_else(unknown)?;
    if !is_supported(log, is_io) {
        return Err(unknown());
    }
    if command.index_offset {
        // No page here is an indexed one.
        return Err(Fault::at(Generic::InvalidField.into(), Fault::CDW14 + 2));
    }
    if !command.offset.is_multiple_of(4) {
        return Err(Fault::at(Generic::InvalidField.into(), Fault::CDW12));
    }
    // One SMART log for all namespaces (LPA bit 0 is clear).
    if log == LogId::SmartHealth && !matches!(command.nsid, 0 | NSID_ALL) {
        return Err(Fault::nsid(Generic::InvalidField.into()));
    }
    Ok(log)
}

/// Fills `out`, which is zeros, with the part of the page that was asked for.
pub(super) fn read(
    log: LogId,
    offset: u64,
    sources: &Sources<'_>,
    out: &mut [u8],
) -> Result<(), Fault> {
    let is_io = sources.subsystem.is_some();
    match log {
        LogId::SupportedLogPages => copy_part(supported_pages(is_io).as_bytes(), offset, out),
        LogId::ErrorInformation => copy_part(&sources.errors.page(), offset, out),
        LogId::SmartHealth => copy_part(smart(sources).as_bytes(), offset, out),
        LogId::FirmwareSlot => copy_part(firmware_slot().as_bytes(), offset, out),
        LogId::ChangedNamespaces => copy_part(sources.changed.page().as_bytes(), offset, out),
        LogId::CommandEffects => copy_part(command_effects(is_io).as_bytes(), offset, out),
        LogId::FeatureEffects => {
            copy_part(feature_effects(sources.subsystem).as_bytes(), offset, out)
        }
        LogId::MiCommandEffects => {
            // No NVMe-MI command is served: all zeros.
            copy_part(MiCommandEffectsLog::default().as_bytes(), offset, out)
        }
        LogId::Discovery => copy_part(&sources.discovery, offset, out),
    }
}

fn copy_part(page: &[u8], offset: u64, out: &mut [u8]) -> Result<(), Fault> {
    let beyond = || Fault::at(Generic::InvalidField.into(), Fault::CDW12);
    let offset = usize::try_from(offset).map_err(|_| beyond())?;
    let rest = page.get(offset..).ok_or_else(beyond)?;
    for (to, from) in out.iter_mut().zip(rest) {
        *to = *from;
    }
    Ok(())
}

fn supported_pages(is_io: bool) -> SupportedLogPages {
    let mut page = SupportedLogPages::default();
    for &log in LogId::ALL {
        if let Some(entry) = page.logs.get_mut(usize::from(log.raw())) {
            *entry = LogSupport::default().with_supported(is_supported(log, is_io));
        }
    }
    page
}

fn smart(sources: &Sources<'_>) -> SmartLog {
    let health = &sources.health;
    let mut log = SmartLog::default();
    if let Some(subsystem) = sources.subsystem {
        log.critical_warning = health.warning(sources.features, subsystem);
    }
    // Data units are 1000 × 512 bytes, rounded up.
    let units = |bytes: u128| bytes.div_ceil(512 * 1000);
    log.temperature_kelvin = health.temperature_kelvin.into();
    log.available_spare = health.available_spare_percent;
    log.available_spare_threshold = health.spare_threshold_percent;
    log.percentage_used = health.percentage_used;
    log.data_units_read = units(health.read_bytes).into();
    log.data_units_written = units(health.written_bytes).into();
    log.host_reads = health.read_commands.into();
    log.host_writes = health.write_commands.into();
    log.busy_minutes = u128::from(health.busy.as_secs() / 60).into();
    log.power_cycles = health.power_cycles.into();
    log.power_on_hours = u128::from(health.power_on.as_secs() / 3600).into();
    log.unsafe_shutdowns = health.unsafe_shutdowns.into();
    log.media_errors = health.media_errors.into();
    log.error_entries = u128::from(sources.errors.count()).into();
    log
}

fn firmware_slot() -> FirmwareSlotLog {
    let mut log = FirmwareSlotLog {
        afi: ActiveFirmware::default().with_active_slot(1),
        ..FirmwareSlotLog::default()
    };
    if let Some(slot) = log.frs.first_mut() {
        put_ascii(slot, FIRMWARE);
    }
    log
}

fn command_effects(is_io: bool) -> CommandEffectsLog {
    let supported = Effects::default().with_supported(true);
    let mut log = CommandEffectsLog::default();
    for &opcode in AdminOpcode::ALL {
        if let Some(entry) = log.admin.get_mut(usize::from(opcode.raw())) {
            *entry = supported.with_scope_controller(true);
        }
    }
    if !is_io {
        return log;
    }
    for &opcode in IoOpcode::ALL {
        let content = match opcode {
            IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement => true,
            IoOpcode::Read | IoOpcode::Flush => false,
        };
        if let Some(entry) = log.io.get_mut(usize::from(opcode.raw())) {
            *entry = supported.with_content(content).with_scope_namespace(true);
        }
    }
    log
}

fn feature_effects(subsystem: Option<&Subsystem>) -> FeatureEffectsLog {
    let mut log = FeatureEffectsLog::default();
    for &feature in FeatureId::ALL {
        let Some(capabilities) = capabilities(feature, subsystem) else { continue };
        let per_namespace = capabilities.namespace_specific();
        if let Some(entry) = log.features.get_mut(usize::from(feature.raw())) {
            *entry = Effects::default()
                .with_supported(true)
                .with_scope_namespace(per_namespace)
                .with_scope_controller(!per_namespace);
        }
    }
    log
}
