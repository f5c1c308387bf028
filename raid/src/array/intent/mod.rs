//! What is written down before data is: so that a crash leaves known what may be inconsistent.
//!
//! So far nothing is: after an unclean stop everything is made consistent again.

use std::ops::Range;

use super::error::ArrayError;

/// Where an array's write intent is kept on its members.
#[derive(Clone, Debug, Default)]
pub enum IntentLayout {
    /// Nowhere: after an unclean stop the whole array is resynced.
    #[default]
    None,
}

/// The write intent of one array.
pub(in crate::array) enum Intent {
    /// None is kept.
    None,
}

/// The right to write to a range whose intent is durable; used up by [`Intent::end`].
#[must_use]
pub(in crate::array) struct IntentToken(());

impl Intent {
    pub(in crate::array) fn new(layout: &IntentLayout) -> Self {
        match layout {
            IntentLayout::None => Self::None,
        }
    }

    /// Whether a crash may have left the range's copies unequal, or its parity wrong, and that has
    /// not been repaired yet.
    pub(in crate::array) fn is_dirty(&self, _range: &Range<u64>) -> bool {
        match self {
            Self::None => false,
        }
    }

    /// Whether there is any such range.
    pub(in crate::array) fn has_dirty(&self) -> bool {
        match self {
            Self::None => false,
        }
    }

    /// All such ranges, in order.
    pub(in crate::array) fn dirty_ranges(&self) -> Vec<Range<u64>> {
        match self {
            Self::None => Vec::new(),
        }
    }

    /// Counts how often ranges have become dirty since the start.
    pub(in crate::array) fn dirty_marks(&self) -> u64 {
        match self {
            Self::None => 0,
        }
    }

    /// What is wholly within the range is not dirty any more; false, and nothing changes, if
    /// anything has become dirty since there were `marks` marks.
    pub(in crate::array) fn made_consistent(&self, _range: &Range<u64>, _marks: u64) -> bool {
        match self {
            Self::None => true,
        }
    }

    /// Makes it durable that the range is about to be written.
    pub(in crate::array) async fn begin(
        &self,
        _range: Range<u64>,
    ) -> Result<IntentToken, ArrayError> {
        match self {
            Self::None => Ok(IntentToken(())),
        }
    }

    /// All that was submitted under the token has ended.
    pub(in crate::array) fn end(&self, token: IntentToken) {
        let IntentToken(()) = token;
    }
}
