//! Every slip of the finger in every field of a rules file is answered with the field that was meant.

use std::collections::HashSet;

use strsim::osa_distance;

use super::{FILE, IMPORT, ShapeKind, ShapeObject};

/// All objects that a kind of value may hold, each once.
fn collect(kind: &'static ShapeKind, found: &mut Vec<&'static ShapeObject>) {
    match kind {
        ShapeKind::Object(object) => collect_object(object, found),
        ShapeKind::List(_, kind) | ShapeKind::BoundedList(_, kind, _) => collect(kind, found),
        ShapeKind::Either(kinds) => kinds.iter().for_each(|kind| collect(kind, found)),
        _ => {}
    }
}

fn collect_object(object: &'static ShapeObject, found: &mut Vec<&'static ShapeObject>) {
    if found.iter().any(|one| std::ptr::eq(*one, object)) {
        return;
    }
    found.push(object);
    object.fields.iter().for_each(|field| collect(&field.kind, found));
    object.free_fields.iter().for_each(|free| collect(&free.kind, found));
}

/// A letter left out, doubled or swapped with the next, other capitals, dashes for underscores, one and many.
fn typos(name: &str) -> HashSet<String> {
    let letters: Vec<char> = name.chars().collect();
    let text = |letters: &[char]| letters.iter().collect::<String>();
    let each = (0..letters.len()).flat_map(|at| {
        let (mut missing, mut doubled, mut swapped) =
            (letters.clone(), letters.clone(), letters.clone());
        missing.remove(at);
        doubled.insert(at, letters[at]);
        swapped.swap(at, (at + 1) % letters.len());
        [
            text(&missing),
            text(&doubled),
            if at + 1 < letters.len() { text(&swapped) } else { name.into() },
        ]
    });
    let others =
        [format!("{name}s"), name.to_uppercase(), name.replace('_', "-"), name.replace('_', "")];
    each.chain(others).filter(|typo| !typo.is_empty() && typo != name).collect()
}

#[test]
fn a_misspelt_field_is_answered_with_the_one_that_was_meant() {
    let mut objects = Vec::new();
    collect_object(&FILE, &mut objects);
    collect_object(&IMPORT, &mut objects);
    assert!(objects.len() > 20, "{}", objects.len());
    let mut count = 0;
    for object in objects {
        for field in object.fields {
            for typo in typos(field.name) {
                if object.field(&typo).is_some() {
                    continue;
                }
                count += 1;
                let meant = object.suggest(&typo);
                let near = |name: &str| osa_distance(name, &typo.to_lowercase().replace('-', "_"));
                // Another field may be as near: `ip` and `id` are both one letter away from `i`.
                let fits = meant.is_some_and(|meant| near(meant) <= near(field.name));
                assert!(fits, "{typo:?} in {}: {meant:?}, not {:?}", object.noun, field.name);
            }
        }
    }
    assert!(count > 1_000, "{count}");
}
