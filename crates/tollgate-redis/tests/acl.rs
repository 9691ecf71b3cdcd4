//! The commands of the scripts, for those who give Tollgate's Redis user no more than it needs.

use std::collections::BTreeSet;

/// The commands that decisions and leases run inside a script.
fn commands_of_decisions() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lua");
    let mut commands = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("the scripts") {
        let path = file.expect("a file").path();
        if path.ends_with("control.lua") {
            continue;
        }
        let script = std::fs::read_to_string(&path).expect("a script");
        let calls = script.split("call('").skip(1);
        commands.extend(calls.filter_map(|rest| Some(rest.split_once('\'')?.0.to_string())));
    }
    commands
}

#[test]
fn the_reference_lists_the_commands_of_decisions() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/store-urls.md");
    let page = std::fs::read_to_string(page).expect("the reference");
    let list: Vec<String> =
        commands_of_decisions().iter().map(|command| format!("`{command}`")).collect();
    let sentence = format!("inside the scripts {}.", list.join(", "));
    assert!(page.contains(&sentence), "store-urls.md does not say: {sentence}");
}
