//! Exclusion: no two owners hold one lock, whatever is lost, late, repeated or refused on the way.

mod concurrent;
mod faults;
mod late_requests;
mod min_hold;
mod min_hold_rw;
mod misplaced;
mod mutex;
mod nested;
mod non_reentrant;
mod script_rollback;
mod scripts;
mod shared_owner;
