//! Deliberate faults, with which the simulation proves that it would notice real ones.
//!
//! Where a promise is kept, the code asks whether it should be broken for once:
//! ```text
//! if mutation!("acknowledge-before-settled") { return Ok(()); }
//! ```
//! In a test build that is true while the simulation lives lives with this mutation (on the thread
//! that does), or if the environment variable `RAIDFABRIC_SIM_MUTATION` names it. In every other
//! build it is the constant `false`, and nothing of it is left in the program.
//!
//! Each name is listed, with what it breaks, in the simulation's table of mutations
//! (`sim::mutations`); one that is not listed panics when it is asked for.

/// Whether this fault is to be made now. See the file's head.
#[allow(unused_macros, reason = "places come and go")]
macro_rules! mutation {
    ($name:literal) => {
        $crate::mutation::is_on($name)
    };
}
#[allow(unused_imports, reason = "places come and go")]
pub(crate) use mutation;

/// Nobody makes faults outside tests.
#[cfg(not(test))]
#[allow(dead_code, reason = "places come and go")]
#[inline(always)]
pub(crate) const fn is_on(_name: &str) -> bool {
    false
}

#[cfg(test)]
#[allow(unused_imports, reason = "places come and go")]
pub(crate) use on::{is_on, with};

#[cfg(test)]
mod on {
    use std::cell::Cell;
    use std::sync::OnceLock;

    thread_local! {
        /// The fault that is being made on this thread; empty: none.
        static CURRENT: Cell<&'static str> = const { Cell::new("") };
    }

    fn from_environment() -> &'static str {
        static NAME: OnceLock<String> = OnceLock::new();
        NAME.get_or_init(|| std::env::var("RAIDFABRIC_SIM_MUTATION").unwrap_or_default())
    }

    /// Whether the fault of this name is to be made now.
    pub(crate) fn is_on(name: &'static str) -> bool {
        debug_assert!(crate::sim::mutations::is_listed(name), "mutation {name:?} is not listed");
        let current = CURRENT.get();
        if current.is_empty() { from_environment() == name } else { current == name }
    }

    /// Runs something with a fault (an empty name: with none).
    pub(crate) fn with<T>(name: &'static str, run: impl FnOnce() -> T) -> T {
        struct Restore(&'static str);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _restore = Restore(CURRENT.replace(name));
        run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutation_is_on_only_where_it_is_asked_for() {
        let name = crate::sim::mutations::MUTATIONS[0].name;
        let before = is_on(name);
        assert!(with(name, || mutation!("write-before-active")));
        assert_eq!(is_on(name), before);
        let other = with("clean-without-flush", || is_on(name));
        assert!(!other);
    }
}
