//! Sums over what a node did, of which the supervisor reads the totals now and then.
//!
//! Each function takes numbers in pairs: one that changes, and the one in the same place of other sums.

/// Adds newer ones; what was there counts `keep` of itself (0 to 1).
pub(crate) fn age_and_add<'a>(keep: f64, pairs: impl Iterator<Item = (&'a mut f64, &'a f64)>) {
    pairs.for_each(|(mine, newer)| *mine = *mine * keep + newer);
}

/// Leaves what was added since an earlier reading.
pub(crate) fn leave_new<'a>(pairs: impl Iterator<Item = (&'a mut f64, &'a f64)>) {
    pairs.for_each(|(mine, earlier)| *mine = (*mine - earlier).max(0.0));
}
