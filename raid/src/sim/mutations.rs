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
        name: "acknowledge-before-settled",
        breaks: "a failure is durable before a write that the member missed is acknowledged",
    },
    Mutation {
        name: "write-before-bitmap-bit",
        breaks: "a bitmap bit is durable before the writes it covers are submitted",
    },
    Mutation {
        name: "write-before-log-record",
        breaks: "a log record is durable before the writes it covers are submitted",
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
        name: "advance-position-without-flush",
        breaks: "all members are flushed before a sync position is recorded",
    },
    Mutation {
        name: "clean-without-flush",
        breaks: "all members are flushed before \"clean\" is recorded",
    },
    Mutation {
        name: "clear-bit-while-degraded",
        breaks: "no bitmap bit is cleared while degraded",
    },
    Mutation {
        name: "believe-flush-after-failure",
        breaks: "a failed flush fails the member and is not repeated and believed",
    },
    Mutation {
        name: "one-event-for-failure",
        breaks: "a failure raises the event count by at least two",
    },
    Mutation {
        name: "no-state-record",
        breaks: "the state directory's record is written before a failure is settled",
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
    Mutation {
        name: "repair-without-lock",
        breaks: "read repair re-reads and rewrites on the owner under the lock",
    },
    Mutation {
        name: "write-without-lock",
        breaks: "overlapping writes reach all copies in the same order",
    },
    Mutation { name: "skip-rebuilding-member", breaks: "a rebuilding member gets every write" },
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
    Mutation { name: "skip-replay", breaks: "the log is replayed before parity is relied on" },
    Mutation {
        name: "ignore-dirty-bits",
        breaks: "what was dirty at a crash is made to agree before it is relied on",
    },
];

/// Whether there is a mutation of this name.
pub(crate) fn is_listed(name: &str) -> bool {
    MUTATIONS.iter().any(|mutation| mutation.name == name)
}
