//! From the configuration and the open arrays to what controllers serve: subsystems, namespaces
//! with their identifiers, and the discovery service's view of them.
//!
//! Identifiers come from the array's UUID and the namespace's place on it, so that they are the
//! same after every restart and on every host that the drives are moved to.

use std::collections::BTreeSet;
use std::sync::Arc;

use raidfabric_raid::geometry::{Geometry, Level};
use uuid::Uuid;

use super::arrays::OpenArray;
use super::compose::{self, OpenComposed};
use super::listen::Listener;
use crate::association::Served;
use crate::config::{Config, Hosts, Limits, Namespace as NamespaceConfig};
use crate::controller::{self, Advertised, Deallocation, Discovery, Namespace, Subsystem};
use crate::core::{Below, VolumePlan};

/// Entries of admin queues, at most.
const ADMIN_QUEUE_ENTRIES: u16 = 128;

/// Why a subsystem cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SubsystemStartError {
    /// A namespace does not fit on its array.
    #[error(
        "subsystem {nqn}: namespace {nsid} ends at byte {end_bytes} of array {array}, which has \
         {array_bytes} bytes: give it a smaller `offset` or `size`"
    )]
    DoesNotFit {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// Where it would end.
        end_bytes: u64,
        /// The array.
        array: String,
        /// Its size.
        array_bytes: u64,
    },
    /// The controller refuses it.
    #[error("subsystem {nqn}: {source}")]
    Controller {
        /// The subsystem.
        nqn: String,
        /// What is wrong.
        source: controller::SubsystemError,
    },
}

/// Everything that is served, and where the data of each namespace are.
pub struct Everything {
    /// For the registry of controllers.
    pub served: Served,
    /// For the data cores.
    pub volumes: Vec<Vec<VolumePlan>>,
}

/// What namespaces can be on.
pub struct Exportable<'a> {
    name: &'a str,
    uuid: Uuid,
    geometry: &'a Geometry,
    has_volatile_cache: bool,
    below: Below,
}

/// All arrays, in the order of the configuration.
pub fn exportable<'a>(
    config: &Config,
    arrays: &'a [OpenArray],
    composed: &'a [OpenComposed],
) -> Vec<Exportable<'a>> {
    let one = |below| {
        Some(match below {
            Below::Array(index) => {
                let array = arrays.get(index)?;
                Exportable {
                    name: &array.name,
                    uuid: array.uuid,
                    geometry: &array.geometry,
                    has_volatile_cache: array.has_volatile_cache(),
                    below,
                }
            }
            Below::Composed(index) => {
                let array = composed.get(index)?;
                let mut leaves = array.leaves.iter().filter_map(|leaf| arrays.get(leaf.array));
                Exportable {
                    name: &array.name,
                    uuid: array.uuid,
                    geometry: &array.geometry,
                    has_volatile_cache: leaves.any(OpenArray::has_volatile_cache),
                    below,
                }
            }
        })
    };
    compose::places(config).into_iter().filter_map(one).collect()
}

/// Builds the snapshots.
///
/// # Errors
/// [`SubsystemStartError`].
pub fn build(
    config: &Config,
    arrays: &[Exportable<'_>],
    listeners: &[Listener],
) -> Result<Everything, SubsystemStartError> {
    let mut subsystems = Vec::new();
    let mut volumes = Vec::new();
    for subsystem in &config.subsystems {
        // Controllers find a namespace's volume by its place in the order of NSIDs.
        let mut configured: Vec<&NamespaceConfig> = subsystem.namespaces.iter().collect();
        configured.sort_by_key(|namespace| namespace.nsid);
        let mut namespaces = Vec::new();
        let mut places = Vec::new();
        for namespace in configured {
            let Some(array) = arrays.get(namespace.array) else { continue };
            namespaces.push(build_namespace(&subsystem.nqn, namespace, array)?);
            places.push(VolumePlan { below: array.below, base_bytes: namespace.offset_bytes });
        }
        let identity = subsystem.namespaces.first().and_then(|ns| arrays.get(ns.array));
        let serial = subsystem.serial.clone().unwrap_or_else(|| {
            serial(identity.map_or(Uuid::nil(), |array| array.uuid), &subsystem.nqn)
        });
        let built = Subsystem::new(
            subsystem.nqn.clone(),
            serial,
            hosts(&subsystem.hosts),
            limits(&config.limits),
            namespaces,
        );
        let built = built.map_err(|source| SubsystemStartError::Controller {
            nqn: subsystem.nqn.clone(),
            source,
        })?;
        subsystems.push(Arc::new(built));
        volumes.push(places);
    }
    let discovery = Arc::new(discovery(config, arrays, listeners));
    Ok(Everything { served: Served { subsystems, discovery }, volumes })
}

/// Whether every namespace fits on its array, of which only the sizes are known: told before any
/// array is created.
///
/// # Errors
/// [`SubsystemStartError::DoesNotFit`].
pub fn check_sizes(config: &Config, capacities_bytes: &[u64]) -> Result<(), SubsystemStartError> {
    for subsystem in &config.subsystems {
        for namespace in &subsystem.namespaces {
            let array =
                config.arrays.get(namespace.array).zip(capacities_bytes.get(namespace.array));
            if let Some((array, &capacity_bytes)) = array {
                namespace_bytes(&subsystem.nqn, namespace, &array.name, capacity_bytes)?;
            }
        }
    }
    Ok(())
}

/// A namespace's size on an array of this capacity.
fn namespace_bytes(
    nqn: &str,
    config: &NamespaceConfig,
    array: &str,
    capacity_bytes: u64,
) -> Result<u64, SubsystemStartError> {
    let rest_bytes = capacity_bytes.saturating_sub(config.offset_bytes);
    let size_bytes = config.size_bytes.unwrap_or(rest_bytes);
    let block_bytes = u64::from(config.block_size_bytes);
    if size_bytes > rest_bytes || size_bytes < block_bytes {
        return Err(SubsystemStartError::DoesNotFit {
            nqn: nqn.to_owned(),
            nsid: config.nsid,
            end_bytes: config.offset_bytes.saturating_add(size_bytes.max(block_bytes)),
            array: array.to_owned(),
            array_bytes: capacity_bytes,
        });
    }
    Ok(size_bytes)
}

fn build_namespace(
    nqn: &str,
    config: &NamespaceConfig,
    array: &Exportable<'_>,
) -> Result<Namespace, SubsystemStartError> {
    let size_bytes = namespace_bytes(nqn, config, array.name, array.geometry.capacity_bytes())?;
    let block_bytes = u64::from(config.block_size_bytes);
    let uuid = namespace_uuid(array.uuid, config.offset_bytes);
    let chunk_bytes = array.geometry.chunk_bytes().and_then(|bytes| u32::try_from(bytes).ok());
    Ok(Namespace {
        nsid: config.nsid,
        block_size_bytes: config.block_size_bytes,
        size_blocks: size_bytes / block_bytes,
        nguid: *uuid.as_bytes(),
        uuid: *uuid.as_bytes(),
        volatile_cache: array.has_volatile_cache,
        ready: true,
        deallocation: Deallocation {
            reads_zeros: true,
            by_write_zeroes: true,
            granularity_bytes: chunk_bytes.unwrap_or(4096),
        },
        write_granularity_bytes: chunk_bytes.unwrap_or(0),
        optimal_write_bytes: 0,
        stripe_bytes: data_stripe_bytes(array.geometry),
    })
}

/// What hosts should not cut requests smaller than: for mirrors there is no such size.
fn data_stripe_bytes(geometry: &Geometry) -> u64 {
    match geometry.level() {
        Level::Raid1 => 0,
        Level::Raid0 | Level::Raid10 | Level::Raid5 | Level::Raid6 => geometry.stripe_bytes(),
    }
}

/// A namespace's UUID, also its NGUID: the array's for what begins at its start, else derived from
/// it and the offset, as version 5 UUIDs are.
fn namespace_uuid(array: Uuid, offset_bytes: u64) -> Uuid {
    Uuid::new_v5(&array, format!("namespace at {offset_bytes}").as_bytes())
}

/// A serial number of 20 characters.
fn serial(array: Uuid, nqn: &str) -> String {
    let uuid = Uuid::new_v5(&array, nqn.as_bytes());
    uuid.simple().to_string().to_uppercase().chars().take(20).collect()
}

fn hosts(hosts: &Hosts) -> controller::Hosts {
    match hosts {
        Hosts::Any => controller::Hosts::Any,
        Hosts::Only(nqns) => controller::Hosts::Only(nqns.iter().cloned().collect::<BTreeSet<_>>()),
    }
}

fn limits(limits: &Limits) -> controller::Limits {
    controller::Limits {
        max_transfer_bytes: limits.max_transfer_bytes,
        in_capsule_bytes: limits.in_capsule_bytes,
        max_queue_entries: u16::try_from(limits.queue_depth).unwrap_or(u16::MAX),
        max_admin_queue_entries: ADMIN_QUEUE_ENTRIES,
        max_io_queues: limits.io_queues,
        max_nsid: 1024,
    }
}

fn discovery(config: &Config, arrays: &[Exportable<'_>], listeners: &[Listener]) -> Discovery {
    let entry = |(port, listener): (usize, &Listener)| controller::Listener {
        port_id: u16::try_from(port + 1).unwrap_or(u16::MAX),
        address: listener.address,
    };
    let all: Vec<_> = listeners.iter().enumerate().map(entry).collect();
    let volumes: Vec<_> = listeners
        .iter()
        .enumerate()
        .filter(|(_, listener)| listener.serves_volumes)
        .map(entry)
        .collect();
    let identity = arrays.first().map_or(Uuid::nil(), |array| array.uuid);
    Discovery {
        serial: serial(identity, "discovery"),
        limits: limits(&config.limits),
        generation: 1,
        listeners: all,
        subsystems: config
            .subsystems
            .iter()
            .map(|subsystem| Advertised {
                nqn: subsystem.nqn.clone(),
                hosts: hosts(&subsystem.hosts),
                listeners: volumes.clone(),
                max_admin_queue_entries: ADMIN_QUEUE_ENTRIES,
            })
            .collect(),
    }
}
