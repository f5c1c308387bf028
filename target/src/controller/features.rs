//! Features: which there are, their values, and what may be changed.
//!
//! Nothing is saved over a reset, so the saved value is the default one.
use super::Fault;
use super::identify::{discovery_events, io_events};
use super::keep_alive::KeepAlive;
use super::subsystem::Subsystem;
use raidfabric_protocol::nvme::admin::{GetFeatures, SetFeatures};
use raidfabric_protocol::nvme::feature::*;
use raidfabric_protocol::nvme::identify::NSID_ALL;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic};
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// The over temperature threshold that is never reached.
const NO_THRESHOLD_KELVIN: u16 = 0xFFFF;

/// TMPSEL for every sensor.
const ALL_SENSORS: u8 = 0xF;

/// Values that Set Features changes and a reset forgets.
#[derive(Debug, Clone, Default)]
pub(super) struct Features {
    arbitration: Arbitration,
    power: PowerManagement,
    over_kelvin: Option<u16>,
    under_kelvin: u16,
    write_atomicity: WriteAtomicity,
    pub(super) events: AsyncEventConfiguration,
    /// I/O queues that the host asked for; `None` before it did.
    pub(super) queues: Option<u16>,
    behavior: HostBehavior,
}

/// The parts of the controller that features are about.
pub(super) struct Context<'a> {
    /// `None` on a discovery controller.
    pub(super) subsystem: Option<&'a Subsystem>,
    pub(super) host_id: &'a [u8; 16],
    pub(super) keep_alive: &'a mut KeepAlive,
    /// I/O queues connected now.
    pub(super) io_queues: usize,
    pub(super) now: Instant,
}

/// What the controller can do with a feature; `None` if it does not have it.
pub(super) fn capabilities(
    feature: FeatureId,
    subsystem: Option<&Subsystem>,
) -> Option<FeatureCapabilities> {
    let fixed = FeatureCapabilities::default();
    let changeable = fixed.with_changeable(true);
    match feature {
        FeatureId::AsyncEventConfiguration | FeatureId::KeepAliveTimer => return Some(changeable),
        FeatureId::HostIdentifier => return Some(fixed),
        _ => {}
    }
    let subsystem = subsystem?;
    match feature {
        FeatureId::Arbitration
        | FeatureId::PowerManagement
        | FeatureId::TemperatureThreshold
        | FeatureId::NumberOfQueues
        | FeatureId::WriteAtomicity
        | FeatureId::HostBehavior => Some(changeable),
        FeatureId::ErrorRecovery => Some(fixed.with_namespace_specific(true)),
        FeatureId::VolatileWriteCache => subsystem.has_volatile_cache().then_some(fixed),
        FeatureId::ReservationNotificationMask | FeatureId::ReservationPersistence => None,
        // Answered above.
        FeatureId::AsyncEventConfiguration
        | FeatureId::KeepAliveTimer
        | FeatureId::HostIdentifier => None,
    }
}

fn find(fid: u8, subsystem: Option<&Subsystem>) -> Result<(FeatureId, FeatureCapabilities), Fault> {
    let unknown = || Fault::at(Generic::InvalidField.into(), Fault::CDW10);
    let feature = FeatureId::from_raw(fid).ok_or_else(unknown)?;
    Ok((feature, capabilities(feature, subsystem).ok_or_else(unknown)?))
}

fn value_fault() -> Fault {
    Fault::at(Generic::InvalidField.into(), Fault::CDW11)
}

impl Features {
    /// The over temperature threshold in force, in kelvin.
    pub(super) fn over_kelvin(&self, subsystem: &Subsystem) -> u16 {
        let default = match subsystem.warning_kelvin {
            0 => NO_THRESHOLD_KELVIN,
            warning => warning,
        };
        self.over_kelvin.unwrap_or(default)
    }

    /// The under temperature threshold in force, in kelvin.
    pub(super) fn under_kelvin(&self) -> u16 {
        self.under_kelvin
    }

    /// I/O queues that the host may connect.
    pub(super) fn granted_queues(&self, subsystem: &Subsystem) -> u16 {
        self.queues.unwrap_or(subsystem.limits.max_io_queues)
    }

    /// Get Features: DW0, and data in `out` for those that have some.
    pub(super) fn get(
        &self,
        command: &GetFeatures,
        context: &Context<'_>,
        out: Option<&mut [u8]>,
    ) -> Result<u32, Fault> {
        let (feature, capabilities) = find(command.fid, context.subsystem)?;
        if command.select == FeatureSelect::Capabilities {
            return Ok(capabilities.raw());
        }
        if let Some(subsystem) = context.subsystem
            && capabilities.namespace_specific()
            && !matches!(command.nsid, 0 | NSID_ALL)
            && subsystem.namespace(command.nsid).is_none()
        {
            return Err(Fault::nsid(Generic::InvalidNamespaceOrFormat.into()));
        }
        let defaults = Self::default();
        let values = if command.select == FeatureSelect::Current { self } else { &defaults };
        let out = feature_data(feature, out)?;
        values.value(feature, command.cdw11, context, out)
    }

    fn value(
        &self,
        feature: FeatureId,
        cdw11: u32,
        context: &Context<'_>,
        out: &mut [u8],
    ) -> Result<u32, Fault> {
        Ok(match feature {
            FeatureId::Arbitration => self.arbitration.raw(),
            FeatureId::PowerManagement => self.power.raw(),
            FeatureId::TemperatureThreshold => self.threshold(cdw11, context)?,
            FeatureId::ErrorRecovery => ErrorRecovery::default().raw(),
            FeatureId::VolatileWriteCache => VolatileWriteCache::default().with_wce(true).raw(),
            FeatureId::NumberOfQueues => {
                let queues = context.subsystem.map_or(1, |it| self.granted_queues(it));
                granted_value(queues)
            }
            FeatureId::WriteAtomicity => self.write_atomicity.raw(),
            FeatureId::AsyncEventConfiguration => self.events.raw(),
            FeatureId::KeepAliveTimer => context.keep_alive.timeout_ms(),
            FeatureId::HostBehavior => {
                out.copy_from_slice(self.behavior.as_bytes());
                0
            }
            FeatureId::HostIdentifier => {
                // Over fabrics the identifier always has 128 bits.
                if !HostIdentifierFormat::from_raw(cdw11).extended() {
                    return Err(value_fault());
                }
                out.copy_from_slice(context.host_id);
                0
            }
            FeatureId::ReservationNotificationMask | FeatureId::ReservationPersistence => {
                return Err(Fault::at(Generic::InvalidField.into(), Fault::CDW10));
            }
        })
    }

    fn threshold(&self, cdw11: u32, context: &Context<'_>) -> Result<u32, Fault> {
        let asked = TemperatureThreshold::from_raw(cdw11);
        // There is the composite temperature and no other sensor.
        if asked.sensor() != 0 {
            return Err(value_fault());
        }
        let kelvin = match asked.under() {
            0 => context.subsystem.map_or(NO_THRESHOLD_KELVIN, |it| self.over_kelvin(it)),
            1 => self.under_kelvin,
            _ => return Err(value_fault()),
        };
        Ok(TemperatureThreshold::default().with_kelvin(kelvin).raw())
    }

    /// Set Features: DW0 of the completion.
    pub(super) fn set(
        &mut self,
        command: &SetFeatures,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Result<u32, Fault> {
        let (feature, capabilities) = find(command.fid, context.subsystem)?;
        // The host's identity comes with Connect and stays (Host Identifier feature).
        if feature == FeatureId::HostIdentifier {
            return Err(Fault::from(Generic::CommandSequenceError));
        }
        if command.save {
            let status = CommandSpecific::FeatureNotSaveable.into();
            return Err(Fault::at(status, Fault::CDW10 + 3));
        }
        if !capabilities.namespace_specific() && !matches!(command.nsid, 0 | NSID_ALL) {
            return Err(Fault::nsid(CommandSpecific::FeatureNotNamespaceSpecific.into()));
        }
        let data = data
            .get(..data_bytes(feature))
            .ok_or_else(|| Fault::from(Generic::DataSglLengthInvalid))?;
        let value = command.value;
        match feature {
            FeatureId::Arbitration => self.arbitration = Arbitration::from_raw(value),
            FeatureId::PowerManagement => {
                let power = PowerManagement::from_raw(value);
                // There is one power state.
                if power.ps() != 0 {
                    return Err(value_fault());
                }
                self.power = power;
            }
            FeatureId::TemperatureThreshold => self.set_threshold(value)?,
            FeatureId::ErrorRecovery => {
                let unchanged = value == ErrorRecovery::default().raw();
                return unchanged_or_refused(unchanged);
            }
            FeatureId::VolatileWriteCache => {
                return unchanged_or_refused(VolatileWriteCache::from_raw(value).wce());
            }
            FeatureId::NumberOfQueues => return self.set_queues(value, context),
            FeatureId::WriteAtomicity => self.write_atomicity = WriteAtomicity::from_raw(value),
            FeatureId::AsyncEventConfiguration => self.set_events(value, context)?,
            FeatureId::KeepAliveTimer => context.keep_alive.set(value, context.now),
            FeatureId::HostBehavior => self.set_behavior(data)?,
            // Not changeable, or not offered: refused above.
            FeatureId::HostIdentifier
            | FeatureId::ReservationNotificationMask
            | FeatureId::ReservationPersistence => return Err(value_fault()),
        }
        Ok(0)
    }

    fn set_threshold(&mut self, value: u32) -> Result<(), Fault> {
        let threshold = TemperatureThreshold::from_raw(value);
        if !matches!(threshold.sensor(), 0 | ALL_SENSORS) {
            return Err(value_fault());
        }
        match threshold.under() {
            0 => self.over_kelvin = Some(threshold.kelvin()),
            1 => self.under_kelvin = threshold.kelvin(),
            _ => return Err(value_fault()),
        }
        Ok(())
    }

    fn set_queues(&mut self, value: u32, context: &Context<'_>) -> Result<u32, Fault> {
        let asked = NumberOfQueues::from_raw(value);
        let Some(subsystem) = context.subsystem else { return Err(value_fault()) };
        if asked.submission() == u16::MAX || asked.completion() == u16::MAX {
            return Err(value_fault());
        }
        // The number is settled before the first I/O queue is connected.
        if context.io_queues != 0 {
            return Err(Fault::from(Generic::CommandSequenceError));
        }
        // A queue is a pair, so the smaller number counts.
        let queues = asked.submission().min(asked.completion()) + 1;
        let granted = queues.min(subsystem.limits.max_io_queues);
        self.queues = Some(granted);
        Ok(granted_value(granted))
    }

    fn set_events(&mut self, value: u32, context: &Context<'_>) -> Result<(), Fault> {
        let events = AsyncEventConfiguration::from_raw(value);
        let supported = match context.subsystem {
            // Critical warnings can be asked for always; all bits of that byte are theirs.
            Some(_) => AsyncEventConfiguration::from_raw(io_events().raw()).with_smart(u8::MAX),
            None => AsyncEventConfiguration::from_raw(discovery_events().raw()),
        };
        if events.raw() | supported.raw() != supported.raw() {
            return Err(value_fault());
        }
        self.events = events;
        Ok(())
    }

    fn set_behavior(&mut self, data: &[u8]) -> Result<(), Fault> {
        let behavior = HostBehavior::read_from_bytes(data)
            .map_err(|_| Fault::from(Generic::DataSglLengthInvalid))?;
        if behavior.acre > 1 || behavior.etdas > 1 || behavior.lbafee > 1 {
            return Err(Fault::from(Generic::InvalidField));
        }
        self.behavior = behavior;
        Ok(())
    }
}

/// The part of the buffer that a feature's data goes to. Hosts may bring a larger
/// buffer, or one where none is needed: the rest stays zeros.
fn feature_data(feature: FeatureId, out: Option<&mut [u8]>) -> Result<&mut [u8], Fault> {
    let bytes = data_bytes(feature);
    let out = out.unwrap_or_default();
    out.get_mut(..bytes).ok_or_else(|| Fault::from(Generic::DataSglLengthInvalid))
}

/// Setting a feature that cannot change to what it is already is no fault.
fn unchanged_or_refused(unchanged: bool) -> Result<u32, Fault> {
    if unchanged { Ok(0) } else { Err(Fault::from(CommandSpecific::FeatureNotChangeable)) }
}

fn granted_value(queues: u16) -> u32 {
    let zeros_based = queues.saturating_sub(1);
    NumberOfQueues::default().with_submission(zeros_based).with_completion(zeros_based).raw()
}
