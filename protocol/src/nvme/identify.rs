//! Identify: which structures there are (CNS) and what is in them.
//!
//! Every structure is 4096 bytes with its fields at the specification's
//! offsets, asserted at compile time. What a controller puts into them is not
//! decided here.
use super::{bit_fields, wire_enum, wire_layout};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of every Identify data structure in bytes.
pub const IDENTIFY_BYTES: usize = 4096;

/// NSID that stands for all namespaces.
pub const NSID_ALL: u32 = 0xFFFF_FFFF;

wire_enum! {
    /// Controller or Namespace Structure, CDW10 of Identify (NVMe Base, Identify command).
    pub enum Cns: u8 {
        /// Identify Namespace of the NVM command set.
        Namespace = 0x00,
        /// Identify Controller.
        Controller = 0x01,
        /// Active namespace ID list.
        ActiveNamespaces = 0x02,
        /// Namespace identification descriptor list.
        NamespaceDescriptors = 0x03,
        /// I/O command set specific Identify Namespace.
        CommandSetNamespace = 0x05,
        /// I/O command set specific Identify Controller.
        CommandSetController = 0x06,
        /// I/O command set specific active namespace ID list.
        CommandSetActiveNamespaces = 0x07,
        /// I/O command set independent Identify Namespace.
        IndependentNamespace = 0x08,
    }
}

/// Command set identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;

wire_enum! {
    /// CNTRLTYPE: what kind of controller this is.
    pub enum ControllerType: u8 {
        /// I/O controller.
        Io = 1,
        /// Discovery controller.
        Discovery = 2,
        /// Administrative controller.
        Administrative = 3,
    }
}

bit_fields! {
    /// CMIC: multi-path and sharing.
    pub struct Cmic: u8 {
        /// The subsystem may have more than one port.
        multi_port / with_multi_port: bool [0:0],
        /// The subsystem may have more than one controller.
        multi_controller / with_multi_controller: bool [1:1],
        /// The controller is an SR-IOV virtual function.
        sriov / with_sriov: bool [2:2],
        /// Asymmetric namespace access reporting.
        ana / with_ana: bool [3:3],
    }
}

bit_fields! {
    /// OAES: optional asynchronous events supported. Its bits are those of the
    /// Asynchronous Event Configuration feature.
    pub struct Oaes: u32 {
        /// Namespace attribute notices.
        namespace_attribute / with_namespace_attribute: bool [8:8],
        /// Firmware activation notices.
        firmware_activation / with_firmware_activation: bool [9:9],
        /// ANA change notices.
        ana_change / with_ana_change: bool [11:11],
        /// Discovery log page change notices.
        discovery_change / with_discovery_change: bool [31:31],
    }
}

bit_fields! {
    /// CTRATT: controller attributes.
    pub struct Ctratt: u32 {
        /// HIDS: 128-bit host identifier supported.
        hids / with_hids: bool [0:0],
        /// TBKAS: any traffic restarts the keep alive timer.
        tbkas / with_tbkas: bool [6:6],
        /// UUIDL: UUID list supported.
        uuid_list / with_uuid_list: bool [9:9],
        /// ELBAS: extended LBA formats supported.
        elbas / with_elbas: bool [15:15],
    }
}

bit_fields! {
    /// FRMW: firmware update capabilities.
    pub struct Frmw: u8 {
        /// Slot 1 is read only.
        slot_1_read_only / with_slot_1_read_only: bool [0:0],
        /// Number of slots, 1 to 7.
        slots / with_slots: u8 [3:1],
        /// Activation without reset.
        activation_without_reset / with_activation_without_reset: bool [4:4],
    }
}

bit_fields! {
    /// LPA: log page attributes.
    pub struct Lpa: u8 {
        /// SMART log per namespace.
        smart_per_namespace / with_smart_per_namespace: bool [0:0],
        /// Commands Supported and Effects log.
        effects_log / with_effects_log: bool [1:1],
        /// Extended data (NUMDU, LPO) in Get Log Page.
        extended_data / with_extended_data: bool [2:2],
        /// Telemetry logs.
        telemetry / with_telemetry: bool [3:3],
        /// Persistent event log.
        persistent_event / with_persistent_event: bool [4:4],
        /// Logs 00h, 12h and 13h, and scopes in log 05h.
        supported_logs / with_supported_logs: bool [5:5],
    }
}

bit_fields! {
    /// ONCS: optional NVM commands and features supported.
    pub struct Oncs: u16 {
        /// Compare.
        compare / with_compare: bool [0:0],
        /// Write Uncorrectable.
        write_uncorrectable / with_write_uncorrectable: bool [1:1],
        /// Dataset Management.
        dataset_management / with_dataset_management: bool [2:2],
        /// Write Zeroes.
        write_zeroes / with_write_zeroes: bool [3:3],
        /// Save and Select in Set and Get Features.
        save_select / with_save_select: bool [4:4],
        /// Reservations.
        reservations / with_reservations: bool [5:5],
        /// Timestamp feature.
        timestamp / with_timestamp: bool [6:6],
        /// Verify.
        verify / with_verify: bool [7:7],
        /// Copy.
        copy / with_copy: bool [8:8],
    }
}

bit_fields! {
    /// VWC: volatile write cache.
    pub struct Vwc: u8 {
        /// A volatile write cache is present.
        present / with_present: bool [0:0],
        /// Whether Flush may name all namespaces; see [`FlushAll`].
        flush_all / with_flush_all: u8 [2:1],
    }
}

wire_enum! {
    /// VWC bits 2:1: how Flush with NSID FFFFFFFFh behaves.
    pub enum FlushAll: u8 {
        /// Not indicated.
        NotIndicated = 0,
        /// Flush with NSID FFFFFFFFh is not supported.
        NotSupported = 2,
        /// Flush with NSID FFFFFFFFh is supported.
        Supported = 3,
    }
}

bit_fields! {
    /// SGLS: SGL support.
    pub struct Sgls: u32 {
        /// SGLs supported: 1 without alignment requirement, 2 with dword alignment.
        support / with_support: u8 [1:0],
        /// Keyed SGL data block descriptors.
        keyed / with_keyed: bool [2:2],
        /// SAOS: the address field may be an offset into the capsule.
        offset / with_offset: bool [20:20],
        /// Transport SGL data block descriptors.
        transport / with_transport: bool [21:21],
    }
}

bit_fields! {
    /// SQES and CQES: queue entry sizes, as powers of two.
    pub struct EntrySizes: u8 {
        /// Required (smallest) size, 2^value bytes.
        minimum / with_minimum: u8 [3:0],
        /// Maximum size, 2^value bytes.
        maximum / with_maximum: u8 [7:4],
    }
}

bit_fields! {
    /// OFCS: optional Fabrics commands supported.
    pub struct Ofcs: u16 {
        /// Disconnect.
        disconnect / with_disconnect: bool [0:0],
    }
}

/// Power State Descriptor (NVMe Base, Identify Controller).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerState {
    /// MP: maximum power, in 0.01 W; 0 for not reported.
    pub mp: U16,
    /// Reserved.
    pub reserved_2: u8,
    /// MXPS and NOPS.
    pub flags: u8,
    /// ENLAT: entry latency in microseconds.
    pub enlat: U32,
    /// EXLAT: exit latency in microseconds.
    pub exlat: U32,
    /// RRT, RRL, RWT, RWL: relative ranks.
    pub relative: [u8; 4],
    /// Idle and active power.
    pub power: [u8; 16],
}
wire_layout!(PowerState, 32, enlat @ 4, exlat @ 8, relative @ 12);

/// Identify Controller (NVMe Base, Identify Controller data structure, CNS 01h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: PCI vendor id.
    pub vid: U16,
    /// SSVID: PCI subsystem vendor id.
    pub ssvid: U16,
    /// SN: serial number, ASCII padded with spaces.
    pub sn: [u8; 20],
    /// MN: model number, ASCII padded with spaces.
    pub mn: [u8; 40],
    /// FR: firmware revision, ASCII padded with spaces.
    pub fr: [u8; 8],
    /// RAB: recommended arbitration burst, 2^value commands.
    pub rab: u8,
    /// IEEE OUI.
    pub ieee: [u8; 3],
    /// CMIC.
    pub cmic: Cmic,
    /// MDTS: maximum data transfer, 2^value units of CAP.MPSMIN; 0 for no limit.
    pub mdts: u8,
    /// CNTLID.
    pub cntlid: U16,
    /// VER: as the VS property.
    pub ver: U32,
    /// RTD3R: resume latency in microseconds.
    pub rtd3r: U32,
    /// RTD3E: shutdown latency in microseconds.
    pub rtd3e: U32,
    /// OAES.
    pub oaes: Oaes,
    /// CTRATT.
    pub ctratt: Ctratt,
    /// RRLS: read recovery levels.
    pub rrls: U16,
    /// BPCAP.
    pub bpcap: u8,
    /// Reserved.
    pub reserved_103: u8,
    /// NSSL: subsystem shutdown latency in microseconds.
    pub nssl: U32,
    /// Reserved.
    pub reserved_108: [u8; 2],
    /// PLSI.
    pub plsi: u8,
    /// CNTRLTYPE; see [`ControllerType`].
    pub cntrltype: u8,
    /// FGUID.
    pub fguid: [u8; 16],
    /// CRDT1 to CRDT3: command retry delays in 100 ms.
    pub crdt: [U16; 3],
    /// CRCAP.
    pub crcap: u8,
    /// Reserved.
    pub reserved_135: [u8; 118],
    /// NVMSR.
    pub nvmsr: u8,
    /// VWCI.
    pub vwci: u8,
    /// MEC.
    pub mec: u8,
    /// OACS: optional admin commands; none are declared by name because none are offered.
    pub oacs: U16,
    /// ACL: concurrent Abort commands, 0's based.
    pub acl: u8,
    /// AERL: outstanding Asynchronous Event Requests, 0's based.
    pub aerl: u8,
    /// FRMW.
    pub frmw: Frmw,
    /// LPA.
    pub lpa: Lpa,
    /// ELPE: error log entries, 0's based.
    pub elpe: u8,
    /// NPSS: power states, 0's based.
    pub npss: u8,
    /// AVSCC.
    pub avscc: u8,
    /// APSTA.
    pub apsta: u8,
    /// WCTEMP: warning temperature in kelvin; 0 for none.
    pub wctemp: U16,
    /// CCTEMP: critical temperature in kelvin; 0 for none.
    pub cctemp: U16,
    /// MTFA.
    pub mtfa: U16,
    /// HMPRE.
    pub hmpre: U32,
    /// HMMIN.
    pub hmmin: U32,
    /// TNVMCAP: total capacity in bytes.
    pub tnvmcap: U128,
    /// UNVMCAP: unallocated capacity in bytes.
    pub unvmcap: U128,
    /// RPMBS.
    pub rpmbs: U32,
    /// EDSTT.
    pub edstt: U16,
    /// DSTO.
    pub dsto: u8,
    /// FWUG.
    pub fwug: u8,
    /// KAS: keep alive granularity in 100 ms; 0 for no keep alive.
    pub kas: U16,
    /// HCTMA.
    pub hctma: U16,
    /// MNTMT.
    pub mntmt: U16,
    /// MXTMT.
    pub mxtmt: U16,
    /// SANICAP.
    pub sanicap: U32,
    /// HMMINDS.
    pub hmminds: U32,
    /// HMMAXD.
    pub hmmaxd: U16,
    /// NSETIDMAX.
    pub nsetidmax: U16,
    /// ENDGIDMAX.
    pub endgidmax: U16,
    /// ANATT: ANA transition time in seconds.
    pub anatt: u8,
    /// ANACAP.
    pub anacap: u8,
    /// ANAGRPMAX.
    pub anagrpmax: U32,
    /// NANAGRPID.
    pub nanagrpid: U32,
    /// PELS.
    pub pels: U32,
    /// Domain identifier.
    pub domainid: U16,
    /// KPIOC.
    pub kpioc: u8,
    /// Reserved.
    pub reserved_359: u8,
    /// MPTFAWR.
    pub mptfawr: U16,
    /// Reserved.
    pub reserved_362: [u8; 6],
    /// MEGCAP.
    pub megcap: U128,
    /// TMPTHHA.
    pub tmpthha: u8,
    /// Reserved.
    pub reserved_385: u8,
    /// CQT: command quiesce time in milliseconds.
    pub cqt: U16,
    /// Reserved.
    pub reserved_388: [u8; 124],
    /// SQES.
    pub sqes: EntrySizes,
    /// CQES.
    pub cqes: EntrySizes,
    /// MAXCMD: commands processed at one time for a queue.
    pub maxcmd: U16,
    /// NN: largest valid NSID.
    pub nn: U32,
    /// ONCS.
    pub oncs: Oncs,
    /// FUSES: fused operations; bit 0 is Compare and Write.
    pub fuses: U16,
    /// FNA.
    pub fna: u8,
    /// VWC.
    pub vwc: Vwc,
    /// AWUN: atomic write unit in blocks, 0's based.
    pub awun: U16,
    /// AWUPF: atomic write unit at power fail in blocks, 0's based.
    pub awupf: U16,
    /// ICSVSCC.
    pub icsvscc: u8,
    /// NWPC.
    pub nwpc: u8,
    /// ACWU: atomic compare and write unit in blocks, 0's based.
    pub acwu: U16,
    /// CDFS: copy descriptor formats.
    pub cdfs: U16,
    /// SGLS.
    pub sgls: Sgls,
    /// MNAN: maximum number of allowed namespaces; 0 means NN.
    pub mnan: U32,
    /// MAXDNA.
    pub maxdna: U128,
    /// MAXCNA.
    pub maxcna: U32,
    /// OAQD, and the data migration fields of later revisions.
    pub reserved_564: [u8; 204],
    /// SUBNQN: NUL-terminated.
    pub subnqn: [u8; 256],
    /// Reserved.
    pub reserved_1024: [u8; 768],
    /// IOCCSZ: I/O command capsule size, in 16 bytes.
    pub ioccsz: U32,
    /// IORCSZ: I/O response capsule size, in 16 bytes.
    pub iorcsz: U32,
    /// ICDOFF: in-capsule data offset, in 16 bytes.
    pub icdoff: U16,
    /// FCATT: bit 0 clear for the dynamic controller model.
    pub fcatt: u8,
    /// MSDBD: SGL descriptors in a capsule; 0 for no limit.
    pub msdbd: u8,
    /// OFCS.
    pub ofcs: Ofcs,
    /// DCTYPE: kind of discovery controller.
    pub dctype: u8,
    /// Reserved.
    pub reserved_1807: [u8; 241],
    /// PSD0 to PSD31.
    pub psd: [PowerState; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}
wire_layout!(
    IdentifyController, 4096,
    ssvid @ 2, sn @ 4, mn @ 24, fr @ 64, rab @ 72, ieee @ 73, cmic @ 76, mdts @ 77, cntlid @ 78,
    ver @ 80, rtd3r @ 84, rtd3e @ 88, oaes @ 92, ctratt @ 96, rrls @ 100, bpcap @ 102, nssl @ 104,
    plsi @ 110, cntrltype @ 111, fguid @ 112, crdt @ 128, crcap @ 134, nvmsr @ 253, vwci @ 254,
    mec @ 255, oacs @ 256, acl @ 258, aerl @ 259, frmw @ 260, lpa @ 261, elpe @ 262, npss @ 263,
    avscc @ 264, apsta @ 265, wctemp @ 266, cctemp @ 268, mtfa @ 270, hmpre @ 272, hmmin @ 276,
    tnvmcap @ 280, unvmcap @ 296, rpmbs @ 312, edstt @ 316, dsto @ 318, fwug @ 319, kas @ 320,
    hctma @ 322, mntmt @ 324, mxtmt @ 326, sanicap @ 328, hmminds @ 332, hmmaxd @ 336,
    nsetidmax @ 338, endgidmax @ 340, anatt @ 342, anacap @ 343, anagrpmax @ 344, nanagrpid @ 348,
    pels @ 352, domainid @ 356, kpioc @ 358, mptfawr @ 360, megcap @ 368, tmpthha @ 384, cqt @ 386,
    sqes @ 512, cqes @ 513, maxcmd @ 514, nn @ 516, oncs @ 520, fuses @ 522, fna @ 524, vwc @ 525,
    awun @ 526, awupf @ 528, icsvscc @ 530, nwpc @ 531, acwu @ 532, cdfs @ 534, sgls @ 536,
    mnan @ 540, maxdna @ 544, maxcna @ 560, subnqn @ 768, ioccsz @ 1792, iorcsz @ 1796,
    icdoff @ 1800, fcatt @ 1802, msdbd @ 1803, ofcs @ 1804, dctype @ 1806, psd @ 2048, vendor @ 3072,
);

bit_fields! {
    /// NSFEAT of the NVM command set: namespace features.
    pub struct Nsfeat: u8 {
        /// THINP: thin provisioning.
        thin / with_thin: bool [0:0],
        /// NSABP: the namespace has its own atomicity fields.
        atomic / with_atomic: bool [1:1],
        /// DAE: deallocated blocks may give an error.
        deallocated_error / with_deallocated_error: bool [2:2],
        /// UIDREUSE: NGUID and EUI64 are never reused.
        uid_not_reused / with_uid_not_reused: bool [3:3],
        /// OPTPERF: NPWG, NPWA, NPDG, NPDA and NOWS are defined.
        optimal_io / with_optimal_io: bool [4:4],
    }
}

bit_fields! {
    /// NMIC: namespace sharing.
    pub struct Nmic: u8 {
        /// The namespace may be attached to several controllers.
        shared / with_shared: bool [0:0],
    }
}

bit_fields! {
    /// DLFEAT: what deallocated blocks read as.
    pub struct Dlfeat: u8 {
        /// Read behaviour: 0 not reported, 1 zeros, 2 FFh.
        read_behaviour / with_read_behaviour: u8 [2:0],
        /// Write Zeroes honours the Deallocate bit.
        write_zeroes_deallocates / with_write_zeroes_deallocates: bool [3:3],
        /// Guard field of deallocated blocks is right for their content.
        guard / with_guard: bool [4:4],
    }
}

/// LBA Format (NVM command set, Identify Namespace).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: metadata bytes per block.
    pub ms: U16,
    /// LBADS: block size, 2^value bytes.
    pub lbads: u8,
    /// RP: relative performance.
    pub rp: u8,
}
wire_layout!(LbaFormat, 4, lbads @ 2, rp @ 3);

/// Identify Namespace of the NVM command set (CNS 00h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: size in blocks.
    pub nsze: U64,
    /// NCAP: capacity in blocks.
    pub ncap: U64,
    /// NUSE: blocks in use.
    pub nuse: U64,
    /// NSFEAT.
    pub nsfeat: Nsfeat,
    /// NLBAF: number of LBA formats, 0's based.
    pub nlbaf: u8,
    /// FLBAS: format in use.
    pub flbas: u8,
    /// MC.
    pub mc: u8,
    /// DPC.
    pub dpc: u8,
    /// DPS.
    pub dps: u8,
    /// NMIC.
    pub nmic: Nmic,
    /// RESCAP.
    pub rescap: u8,
    /// FPI.
    pub fpi: u8,
    /// DLFEAT.
    pub dlfeat: Dlfeat,
    /// NAWUN.
    pub nawun: U16,
    /// NAWUPF.
    pub nawupf: U16,
    /// NACWU.
    pub nacwu: U16,
    /// NABSN.
    pub nabsn: U16,
    /// NABO.
    pub nabo: U16,
    /// NABSPF.
    pub nabspf: U16,
    /// NOIOB: optimal I/O boundary in blocks; 0 for none.
    pub noiob: U16,
    /// NVMCAP: in bytes.
    pub nvmcap: U128,
    /// NPWG: preferred write granularity in blocks, 0's based.
    pub npwg: U16,
    /// NPWA: preferred write alignment in blocks, 0's based.
    pub npwa: U16,
    /// NPDG: preferred deallocate granularity in blocks, 0's based.
    pub npdg: U16,
    /// NPDA: preferred deallocate alignment in blocks, 0's based.
    pub npda: U16,
    /// NOWS: optimal write size in blocks, 0's based.
    pub nows: U16,
    /// MSSRL.
    pub mssrl: U16,
    /// MCL.
    pub mcl: U32,
    /// MSRC.
    pub msrc: u8,
    /// KPIOS.
    pub kpios: u8,
    /// NULBAF.
    pub nulbaf: u8,
    /// Reserved.
    pub reserved_83: u8,
    /// KPIODAAG.
    pub kpiodaag: U32,
    /// Reserved.
    pub reserved_88: [u8; 4],
    /// ANAGRPID.
    pub anagrpid: U32,
    /// Reserved.
    pub reserved_96: [u8; 3],
    /// NSATTR: bit 0 is write protected.
    pub nsattr: u8,
    /// NVMSETID.
    pub nvmsetid: U16,
    /// ENDGID.
    pub endgid: U16,
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBAF0 to LBAF63.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}
wire_layout!(
    IdentifyNamespace, 4096,
    ncap @ 8, nuse @ 16, nsfeat @ 24, nlbaf @ 25, flbas @ 26, mc @ 27, dpc @ 28, dps @ 29, nmic @ 30,
    rescap @ 31, fpi @ 32, dlfeat @ 33, nawun @ 34, nawupf @ 36, nacwu @ 38, nabsn @ 40, nabo @ 42,
    nabspf @ 44, noiob @ 46, nvmcap @ 48, npwg @ 64, npwa @ 66, npdg @ 68, npda @ 70, nows @ 72,
    mssrl @ 74, mcl @ 76, msrc @ 80, kpios @ 81, nulbaf @ 82, kpiodaag @ 84, anagrpid @ 92,
    nsattr @ 99, nvmsetid @ 100, endgid @ 102, nguid @ 104, eui64 @ 120, lbaf @ 128, vendor @ 384,
);

bit_fields! {
    /// NSTAT: namespace status.
    pub struct Nstat: u8 {
        /// NRDY: the namespace is ready.
        nrdy / with_nrdy: bool [0:0],
    }
}

/// I/O Command Set Independent Identify Namespace (CNS 08h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// NSFEAT: only UIDREUSE (bit 3) and RMEDIA (bit 4) are common to all command sets.
    pub nsfeat: IndependentNsfeat,
    /// NMIC.
    pub nmic: Nmic,
    /// RESCAP.
    pub rescap: u8,
    /// FPI.
    pub fpi: u8,
    /// ANAGRPID.
    pub anagrpid: U32,
    /// NSATTR.
    pub nsattr: u8,
    /// Reserved.
    pub reserved_9: u8,
    /// NVMSETID.
    pub nvmsetid: U16,
    /// ENDGID.
    pub endgid: U16,
    /// NSTAT.
    pub nstat: Nstat,
    /// KPIOS, MAXKT and later fields.
    pub reserved_15: [u8; 4081],
}
wire_layout!(
    IndependentNamespace, 4096,
    nmic @ 1, rescap @ 2, fpi @ 3, anagrpid @ 4, nsattr @ 8, nvmsetid @ 10, endgid @ 12, nstat @ 14,
);

bit_fields! {
    /// NSFEAT in the I/O command set independent structure.
    pub struct IndependentNsfeat: u8 {
        /// UIDREUSE: NGUID and EUI64 are never reused.
        uid_not_reused / with_uid_not_reused: bool [3:3],
        /// RMEDIA: rotational media.
        rotational / with_rotational: bool [4:4],
        /// VWCNP: this namespace has no volatile write cache.
        no_volatile_cache / with_no_volatile_cache: bool [5:5],
    }
}

/// Identify Controller of the NVM command set (CNS 06h, CSI 0).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmController {
    /// VSL: Verify size limit, 2^value units of CAP.MPSMIN; 0 for none.
    pub vsl: u8,
    /// WZSL: Write Zeroes size limit, likewise.
    pub wzsl: u8,
    /// WUSL: Write Uncorrectable size limit, likewise.
    pub wusl: u8,
    /// DMRL: Dataset Management ranges limit; 0 for none.
    pub dmrl: u8,
    /// DMRSL: blocks in one range; 0 for no limit.
    pub dmrsl: U32,
    /// DMSL: blocks in one command; 0 for no limit.
    pub dmsl: U64,
    /// Fields of later revisions.
    pub reserved_16: [u8; 4080],
}
wire_layout!(NvmController, 4096, wzsl @ 1, wusl @ 2, dmrl @ 3, dmrsl @ 4, dmsl @ 8);

/// Identify Namespace of the NVM command set, the part with protection information (CNS 05h, CSI 0).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmNamespace {
    /// LBSTM: storage tag mask.
    pub lbstm: U64,
    /// PIC.
    pub pic: u8,
    /// PIFA.
    pub pifa: u8,
    /// Reserved.
    pub reserved_10: [u8; 2],
    /// ELBAF0 to ELBAF63: protection information format and storage tag size.
    pub elbaf: [U32; 64],
    /// Fields of later revisions.
    pub reserved_268: [u8; 3828],
}
wire_layout!(NvmNamespace, 4096, pic @ 8, pifa @ 9, elbaf @ 12, reserved_268 @ 268);

macro_rules! zeroed_default {
    ($($ty:ty),*) => {$(
        impl Default for $ty {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }
    )*};
}
zeroed_default!(
    PowerState,
    IdentifyController,
    IdentifyNamespace,
    IndependentNamespace,
    NvmController,
    NvmNamespace
);

wire_enum! {
    /// NIDT: type of a namespace identification descriptor (CNS 03h).
    pub enum NamespaceIdType: u8 {
        /// EUI64, 8 bytes.
        Eui64 = 1,
        /// NGUID, 16 bytes.
        Nguid = 2,
        /// UUID, 16 bytes.
        Uuid = 3,
        /// Command set identifier, 1 byte.
        Csi = 4,
    }
}

/// Header of a namespace identification descriptor (CNS 03h); NIDL bytes follow it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NamespaceIdHeader {
    /// NIDT; see [`NamespaceIdType`]. 0 ends the list.
    pub nidt: u8,
    /// NIDL: length of the identifier in bytes.
    pub nidl: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
}
wire_layout!(NamespaceIdHeader, 4, nidl @ 1);

/// Appends one descriptor to a CNS 03h list and returns the position after it.
///
/// `None` if it does not fit; nothing is written then.
pub fn put_namespace_id(
    list: &mut [u8],
    at: usize,
    kind: NamespaceIdType,
    id: &[u8],
) -> Option<usize> {
    let nidl = u8::try_from(id.len()).ok()?;
    let header = NamespaceIdHeader { nidt: kind.raw(), nidl, reserved_2: [0; 2] };
    let body = at.checked_add(size_of::<NamespaceIdHeader>())?;
    let end = body.checked_add(id.len())?;
    let room = list.get_mut(at..end)?;
    let (head, tail) = room.split_at_mut(size_of::<NamespaceIdHeader>());
    head.copy_from_slice(header.as_bytes());
    tail.copy_from_slice(id);
    Some(end)
}

/// The descriptors in a CNS 03h list, up to the first that is empty or cut off.
pub fn namespace_ids(list: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = list;
    core::iter::from_fn(move || {
        let (header, after) = NamespaceIdHeader::read_from_prefix(rest).ok()?;
        if header.nidt == 0 || header.nidl == 0 {
            return None;
        }
        let (id, after) = after.split_at_checked(usize::from(header.nidl))?;
        rest = after;
        Some((header.nidt, id))
    })
}

/// Copies ASCII text into a field, cut to its size and padded with spaces.
///
/// Characters outside printable ASCII become `?`: the fields allow nothing else.
pub fn put_ascii(field: &mut [u8], text: &str) {
    let printable = |c: char| if matches!(c, ' '..='~') { c as u8 } else { b'?' };
    let mut characters = text.chars().map(printable);
    for byte in field {
        *byte = characters.next().unwrap_or(b' ');
    }
}

/// An ASCII field's text without its padding.
pub fn ascii(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches([' ', '\0']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_round_trip() {
        let mut list = [0u8; 64];
        let at = put_namespace_id(&mut list, 0, NamespaceIdType::Nguid, &[7; 16]).unwrap();
        let at = put_namespace_id(&mut list, at, NamespaceIdType::Csi, &[0]).unwrap();
        assert_eq!(at, 25);
        assert_eq!(list[..5], [2, 16, 0, 0, 7]);
        assert_eq!(list[20..25], [4, 1, 0, 0, 0]);
        let found: Vec<_> = namespace_ids(&list).collect();
        assert_eq!(found, [(2, &[7u8; 16][..]), (4, &[0u8][..])]);
        assert_eq!(put_namespace_id(&mut list, 60, NamespaceIdType::Csi, &[0]), None);
        assert_eq!(list[60..], [0; 4]);
    }

    #[test]
    fn a_cut_off_descriptor_ends_the_list() {
        assert_eq!(namespace_ids(&[2, 16, 0, 0, 1]).count(), 0);
        assert_eq!(namespace_ids(&[2, 16]).count(), 0);
    }

    #[test]
    fn ascii_fields() {
        let mut field = [0u8; 8];
        put_ascii(&mut field, "0.1é");
        assert_eq!(&field, b"0.1?    ");
        assert_eq!(ascii(&field), "0.1?");
        put_ascii(&mut field, "longer than eight");
        assert_eq!(&field, b"longer t");
    }

    #[test]
    fn bits_hosts_look_at() {
        assert_eq!(Cmic::default().with_multi_controller(true).raw(), 2);
        assert_eq!(Sgls::default().with_support(1).with_offset(true).raw(), 1 | 1 << 20);
        assert_eq!(Sgls::default().with_transport(true).raw(), 1 << 21);
        assert_eq!(Oaes::default().with_namespace_attribute(true).raw(), 0x100);
        assert_eq!(Oaes::default().with_discovery_change(true).raw(), 0x8000_0000);
        assert_eq!(EntrySizes::default().with_minimum(6).with_maximum(6).raw(), 0x66);
        assert_eq!(Frmw::default().with_slot_1_read_only(true).with_slots(1).raw(), 3);
        assert_eq!(Vwc::default().with_present(true).with_flush_all(3).raw(), 7);
    }
}
