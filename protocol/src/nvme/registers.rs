//! Controller properties: CAP, VS, CC, CSTS, CRTO, declared once.
//!
//! Over fabrics they are read and written by Property Get and Property Set
//! ([`crate::fabrics`]); this file says only what their bits mean.
use super::{bit_fields, wire_enum};

bit_fields! {
    /// Controller Capabilities, offset 0h, 8 bytes (NVMe Base, Controller Properties).
    pub struct Cap: u64 {
        /// MQES: maximum queue entries supported, 0's based.
        mqes / with_mqes: u16 [15:0],
        /// CQR: contiguous queues required; 1 over fabrics.
        cqr / with_cqr: bool [16:16],
        /// AMS: arbitration mechanisms beyond round robin.
        ams / with_ams: u8 [18:17],
        /// TO: worst-case time until CSTS.RDY changes, in 500 ms units.
        to / with_to: u8 [31:24],
        /// DSTRD: doorbell stride; 0 over fabrics.
        dstrd / with_dstrd: u8 [35:32],
        /// NSSRS: NVM subsystem reset supported.
        nssrs / with_nssrs: bool [36:36],
        /// CSS bit 0: the NVM command set is supported.
        css_nvm / with_css_nvm: bool [37:37],
        /// CSS bit 6: one or more I/O command sets, chosen by profile.
        css_iocss / with_css_iocss: bool [43:43],
        /// CSS bit 7: no I/O command set (admin only).
        css_none / with_css_none: bool [44:44],
        /// BPS: boot partitions supported.
        bps / with_bps: bool [45:45],
        /// CPS: controller power scope.
        cps / with_cps: u8 [47:46],
        /// MPSMIN: smallest host page size, 2^(12 + value) bytes.
        mpsmin / with_mpsmin: u8 [51:48],
        /// MPSMAX: largest host page size, 2^(12 + value) bytes.
        mpsmax / with_mpsmax: u8 [55:52],
        /// PMRS: persistent memory region supported.
        pmrs / with_pmrs: bool [56:56],
        /// CMBS: controller memory buffer supported.
        cmbs / with_cmbs: bool [57:57],
        /// NSSS: NVM subsystem shutdown supported.
        nsss / with_nsss: bool [58:58],
        /// CRMS.CRWMS: controller ready with media supported; 1 since NVMe 2.0.
        crwms / with_crwms: bool [59:59],
        /// CRMS.CRIMS: controller ready independent of media supported.
        crims / with_crims: bool [60:60],
    }
}

bit_fields! {
    /// Version, offset 8h, 4 bytes; also VER in Identify Controller.
    pub struct Vs: u32 {
        /// TER: tertiary version.
        ter / with_ter: u8 [7:0],
        /// MNR: minor version.
        mnr / with_mnr: u8 [15:8],
        /// MJR: major version.
        mjr / with_mjr: u16 [31:16],
    }
}

impl Vs {
    /// NVMe 2.0.0.
    pub const V2_0: Self = Self::from_raw(0x0002_0000);
}

bit_fields! {
    /// Controller Configuration, offset 14h, 4 bytes.
    pub struct Cc: u32 {
        /// EN: enable.
        en / with_en: bool [0:0],
        /// CSS: I/O command set selected; 0 for NVM.
        css / with_css: u8 [6:4],
        /// MPS: host page size, 2^(12 + value) bytes.
        mps / with_mps: u8 [10:7],
        /// AMS: arbitration selected; 0 for round robin.
        ams / with_ams: u8 [13:11],
        /// SHN: shutdown notification; see [`ShutdownNotification`].
        shn / with_shn: u8 [15:14],
        /// IOSQES: I/O submission queue entry size, 2^value bytes.
        iosqes / with_iosqes: u8 [19:16],
        /// IOCQES: I/O completion queue entry size, 2^value bytes.
        iocqes / with_iocqes: u8 [23:20],
        /// CRIME: controller ready independent of media enable.
        crime / with_crime: bool [24:24],
    }
}

wire_enum! {
    /// CC.SHN: what the host asks for.
    pub enum ShutdownNotification: u8 {
        /// No notification.
        None = 0,
        /// Normal shutdown: cached data is made durable first.
        Normal = 1,
        /// Abrupt shutdown.
        Abrupt = 2,
    }
}

bit_fields! {
    /// Controller Status, offset 1Ch, 4 bytes.
    pub struct Csts: u32 {
        /// RDY: ready to process commands.
        rdy / with_rdy: bool [0:0],
        /// CFS: controller fatal status.
        cfs / with_cfs: bool [1:1],
        /// SHST: shutdown status; see [`ShutdownStatus`].
        shst / with_shst: u8 [3:2],
        /// NSSRO: an NVM subsystem reset occurred.
        nssro / with_nssro: bool [4:4],
        /// PP: processing paused.
        pp / with_pp: bool [5:5],
        /// ST: the shutdown is of the whole NVM subsystem.
        st / with_st: bool [6:6],
    }
}

wire_enum! {
    /// CSTS.SHST: how far a shutdown is.
    pub enum ShutdownStatus: u8 {
        /// Normal operation.
        Normal = 0,
        /// Shutdown processing occurring.
        Occurring = 1,
        /// Shutdown processing complete.
        Complete = 2,
    }
}

bit_fields! {
    /// Controller Ready Timeouts, offset 68h, 4 bytes.
    pub struct Crto: u32 {
        /// CRWMT: worst-case time until ready with media, in 500 ms units.
        crwmt / with_crwmt: u16 [15:0],
        /// CRIMT: worst-case time until ready independent of media, in 500 ms units.
        crimt / with_crimt: u16 [31:16],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_bits() {
        let cap = Cap::default()
            .with_mqes(1022)
            .with_cqr(true)
            .with_to(15)
            .with_css_nvm(true)
            .with_crwms(true);
        assert_eq!(cap.raw(), 1022 | 1 << 16 | 15 << 24 | 1 << 37 | 1 << 59);
        assert_eq!(Cap::default().with_mpsmin(1).raw(), 1 << 48);
        assert_eq!(Cap::default().with_mpsmax(1).raw(), 1 << 52);
        assert_eq!(Cap::default().with_nssrs(true).raw(), 1 << 36);
        assert_eq!(Cap::default().with_css_iocss(true).raw(), 1 << 43);
        assert_eq!(Cap::default().with_dstrd(1).raw(), 1 << 32);
        assert_eq!(Cap::default().with_crims(true).raw(), 1 << 60);
    }

    #[test]
    fn cc_as_linux_enables_it() {
        // EN, NVM command set, 4 KiB pages, round robin, 64-byte SQEs, 16-byte CQEs.
        let cc = Cc::from_raw(0x0046_0001);
        assert!(cc.en() && !cc.crime());
        assert_eq!((cc.css(), cc.mps(), cc.ams(), cc.shn()), (0, 0, 0, 0));
        assert_eq!((cc.iosqes(), cc.iocqes()), (6, 4));
        assert_eq!(Cc::from_raw(0x0046_4001).shn(), ShutdownNotification::Normal.raw());
        assert_eq!(Cc::default().with_crime(true).raw(), 1 << 24);
        assert_eq!(Cc::default().with_mps(1).raw(), 1 << 7);
        assert_eq!(Cc::default().with_ams(1).raw(), 1 << 11);
        assert_eq!(Cc::default().with_css(1).raw(), 1 << 4);
    }

    #[test]
    fn csts_vs_and_crto_bits() {
        assert_eq!(Csts::default().with_rdy(true).with_shst(2).raw(), 0b1001);
        assert_eq!(Csts::default().with_cfs(true).raw(), 2);
        assert_eq!((Vs::V2_0.mjr(), Vs::V2_0.mnr(), Vs::V2_0.ter()), (2, 0, 0));
        assert_eq!(Crto::default().with_crwmt(15).with_crimt(1).raw(), 0x0001_000F);
    }
}
