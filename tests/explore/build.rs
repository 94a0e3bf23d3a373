//! Turns the switch.

fn main() {
    println!("cargo::rustc-cfg=leasehold_explore");
}
