//! The faults that can be made on purpose ([`crate::mutation`]): what each breaks.

/// A fault in the engine that the simulation must notice.
pub(crate) struct Mutation {
    /// What the code calls it.
    pub(crate) name: &'static str,
    /// The promise that it breaks.
    #[allow(dead_code, reason = "for the table")]
    pub(crate) breaks: &'static str,
}

/// All of them.
pub(crate) const MUTATIONS: &[Mutation] = &[
    // Nothing durable may claim what is not.
    Mutation {
        name: "write-before-active",
        breaks: "superblocks say \"active\" before the first write after clean",
    },
    Mutation {
        name: "write-before-bitmap-bit",
        breaks: "a bitmap bit is durable before the writes it covers are submitted",
    },
    Mutation { name: "bitmap-on-one-member", breaks: "a bitmap bit is on every member" },
    Mutation {
        name: "write-before-log-record",
        breaks: "a log record is durable before the writes it covers are submitted",
    },
    Mutation {
        name: "no-log-while-degraded",
        breaks: "a log record is written in a degraded array, too",
    },
    Mutation {
        name: "log-without-q",
        breaks: "RAID 6 logs the partial Q as well as the partial P",
    },
    Mutation {
        name: "metadata-without-fua",
        breaks: "bits, records and maps are durable when their writes have ended",
    },
    Mutation {
        name: "acknowledge-before-settled",
        breaks: "a failure is durable before a write that the member missed is acknowledged",
    },
    Mutation {
        name: "one-event-for-failure",
        breaks: "a failure raises the event count by at least two",
    },
    Mutation {
        name: "same-epoch",
        breaks: "a change of the members has a new epoch before anything depends on it",
    },
    Mutation {
        name: "no-state-record",
        breaks: "the state directory's record is written before a failure is settled",
    },
    Mutation {
        name: "no-record-of-loss-at-start",
        breaks: "a start without a member records its loss before anybody reads",
    },
    Mutation {
        name: "clear-bit-without-flush",
        breaks: "all members are flushed before a bitmap bit is cleared",
    },
    Mutation {
        name: "reuse-log-without-flush",
        breaks: "all members are flushed before log space is used again",
    },
    Mutation {
        name: "reuse-log-under-writes",
        breaks: "log space is used again only after the writes that it covers",
    },
    Mutation {
        name: "advance-resync-without-flush",
        breaks: "all members are flushed before a resync position is recorded",
    },
    Mutation {
        name: "advance-rebuild-without-flush",
        breaks: "all members are flushed before a rebuild position is recorded",
    },
    Mutation {
        name: "position-of-after-the-flush",
        breaks: "the position that is recorded is that from before the flush",
    },
    Mutation {
        name: "clean-without-flush",
        breaks: "all members are flushed before \"clean\" is recorded",
    },
    Mutation {
        name: "clean-beside-write",
        breaks: "\"clean\" is recorded only while nothing is being written",
    },
    Mutation {
        name: "clean-after-failure",
        breaks: "\"clean\" is not recorded once the array has failed",
    },
    Mutation { name: "flush-one-member", breaks: "a flush is one of all members" },
    Mutation {
        name: "believe-flush-after-failure",
        breaks: "a failed flush fails the member and is not repeated and believed",
    },
    Mutation {
        name: "keep-member-after-failed-write",
        breaks: "a member that does not write has failed",
    },
    Mutation {
        name: "clear-bit-while-degraded",
        breaks: "no bitmap bit is cleared while degraded",
    },
    // What is acknowledged, or was read once.
    Mutation { name: "write-without-fua", breaks: "a write with FUA is durable on all members" },
    Mutation {
        name: "mend-without-fua",
        breaks: "what is read where copies differ is durable on all before it is answered",
    },
    Mutation {
        name: "agree-before-flush",
        breaks: "copies count as equal only once all members have been flushed",
    },
    // Reads beside the owner.
    Mutation {
        name: "no-epoch-check-after-read",
        breaks: "a read is done again if the member it used is not readable any more",
    },
    Mutation {
        name: "read-dirty-beside-owner",
        breaks: "reads of what does not agree go to the owner, which makes it agree first",
    },
    Mutation {
        name: "read-rebuilding-member",
        breaks: "a rebuilding member is read only below the rebuild's position",
    },
    Mutation { name: "read-bad-block", breaks: "a bad block is not read" },
    Mutation {
        name: "repair-without-lock",
        breaks: "read repair re-reads and rewrites on the owner under the lock",
    },
    Mutation {
        name: "write-without-lock",
        breaks: "overlapping writes reach all copies in the same order",
    },
    Mutation { name: "skip-rebuilding-member", breaks: "a rebuilding member gets every write" },
    // Bad blocks.
    Mutation { name: "forget-bad-block", breaks: "what is lost is bad from then on" },
    Mutation { name: "bad-blocks-in-memory-only", breaks: "bad blocks are recorded" },
    Mutation {
        name: "clear-bad-block-before-it-is-durable",
        breaks: "a block is bad until what was written there is durable",
    },
    // Members that come back.
    Mutation {
        name: "no-degraded-map",
        breaks: "what a member misses is in the degraded-write map",
    },
    Mutation {
        name: "forget-write-beside-failure",
        breaks: "so is what was being written when it failed",
    },
    Mutation {
        name: "readd-as-it-is",
        breaks: "a member that comes back is rebuilt where it misses something",
    },
    // Assembly.
    Mutation {
        name: "believe-older-member",
        breaks: "a member is in sync only within one event of the newest, and if that says so",
    },
    Mutation {
        name: "ignore-what-a-member-deems-failed",
        breaks: "members that deem each other failed have diverged",
    },
    Mutation {
        name: "ignore-state-record",
        breaks: "a set that is behind what is remembered does not start by itself",
    },
    Mutation {
        name: "start-without-missing-members",
        breaks: "nor does one that lacks members which may be newer",
    },
    Mutation {
        name: "believe-any-private-header",
        breaks: "the private area counts only beside the superblock it was written for",
    },
    Mutation { name: "skip-replay", breaks: "the log is replayed before parity is relied on" },
    Mutation {
        name: "ignore-dirty-bits",
        breaks: "what was dirty at a crash is made to agree before it is relied on",
    },
    // Parity.
    Mutation {
        name: "wrong-parity-after-partial-write",
        breaks: "a partial write leaves the parity right",
    },
    Mutation { name: "wrong-q-after-partial-write", breaks: "a partial write leaves Q right" },
    Mutation { name: "trust-unsynced-parity", breaks: "parity is used only where it was synced" },
    Mutation {
        name: "log-without-checks",
        breaks: "a crash with the loss of a member takes nothing that was acknowledged as safe",
    },
    Mutation {
        name: "rebuild-from-untrusted-parity",
        breaks: "nor is a member rebuilt from it elsewhere",
    },
    Mutation {
        name: "trust-parity-after-failed-write",
        breaks: "parity that does not fit its data any more is not relied on",
    },
];

/// Whether there is a mutation of this name.
pub(crate) fn is_listed(name: &str) -> bool {
    MUTATIONS.iter().any(|mutation| mutation.name == name)
}
