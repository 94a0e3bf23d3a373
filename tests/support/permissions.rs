//! The rules of docs/permissions.md.

const PAGE: &str = include_str!("../../docs/permissions.md");

/// The rules of each block that creates a user: for one server, a cluster, sentinels.
pub(crate) fn blocks() -> impl Iterator<Item = impl Iterator<Item = &'static str>> {
    let blocks = PAGE.split("```text\nACL SETUSER billing reset on >PASSWORD\n").skip(1);
    blocks.map(|block| block.split("```").next().expect("its end").split_whitespace())
}

/// The rules for a lock on one server.
pub(crate) fn of_a_lock() -> Vec<&'static str> {
    blocks().next().expect("the first block").collect()
}

/// The rules in the row that begins with that cell.
pub(crate) fn of_row(cell: &str) -> Vec<&'static str> {
    let begin = format!("| {cell} | `");
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&begin)).expect("a row of the page");
    row.trim_end_matches(['|', ' ', '`']).split_whitespace().collect()
}
