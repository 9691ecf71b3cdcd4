//! A vector with stable places: freed places are used again, and a generation tells an old
//! occupant of a place from the present one.

use std::ops::{Index, IndexMut};

/// Index of no place.
pub(super) const NO_INDEX: u32 = u32::MAX;

/// The places of one kind of entry. Bound: the caller's; memory grows to the most entries held at
/// one time and is reused.
#[derive(Debug)]
pub(super) struct Slab<E> {
    places: Vec<SlabPlace<E>>,
    /// The place freed last, or [`NO_INDEX`].
    first_free: u32,
    len: usize,
}

#[derive(Debug)]
struct SlabPlace<E> {
    /// Number of entries that have left this place.
    generation: u32,
    content: SlabContent<E>,
}

#[derive(Debug)]
enum SlabContent<E> {
    Taken(E),
    Free { next: u32 },
}

impl<E> Slab<E> {
    pub(super) const fn new() -> Slab<E> {
        Slab { places: Vec::new(), first_free: NO_INDEX, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Stores an entry and returns its index. At most `u32::MAX − 1` entries fit.
    pub(super) fn insert(&mut self, entry: E) -> u32 {
        self.len += 1;
        if self.first_free == NO_INDEX {
            let index = u32::try_from(self.places.len()).expect("the caller bounds the entries");
            self.places.push(SlabPlace { generation: 0, content: SlabContent::Taken(entry) });
            return index;
        }
        let index = self.first_free;
        let place = &mut self.places[index as usize];
        match std::mem::replace(&mut place.content, SlabContent::Taken(entry)) {
            SlabContent::Free { next } => self.first_free = next,
            SlabContent::Taken(_) => unreachable!("the free list has free places only"),
        }
        index
    }

    /// Takes an entry out and frees its place.
    pub(super) fn remove(&mut self, index: u32) -> E {
        let place = &mut self.places[index as usize];
        let free = SlabContent::Free { next: self.first_free };
        match std::mem::replace(&mut place.content, free) {
            SlabContent::Taken(entry) => {
                place.generation = place.generation.wrapping_add(1);
                self.first_free = index;
                self.len -= 1;
                entry
            }
            SlabContent::Free { .. } => unreachable!("entries are removed once"),
        }
    }

    /// The generation of a place: it changes when the occupant leaves.
    pub(super) fn generation(&self, index: u32) -> u32 {
        self.places[index as usize].generation
    }

    /// Returns true if the entry that got this index and generation is still there.
    pub(super) fn holds(&self, index: u32, generation: u32) -> bool {
        self.places.get(index as usize).is_some_and(|place| {
            place.generation == generation && matches!(place.content, SlabContent::Taken(_))
        })
    }
}

impl<E> Index<u32> for Slab<E> {
    type Output = E;

    #[inline]
    fn index(&self, index: u32) -> &E {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        match &self.places[index as usize].content {
            SlabContent::Taken(entry) => entry,
            SlabContent::Free { .. } => unreachable!("an index is forgotten when its entry leaves"),
        }
    }
}

impl<E> IndexMut<u32> for Slab<E> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut E {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        match &mut self.places[index as usize].content {
            SlabContent::Taken(entry) => entry,
            SlabContent::Free { .. } => unreachable!("an index is forgotten when its entry leaves"),
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Number of looks at entries by this thread, for tests that count steps.
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Number of looks at entries that a step takes.
#[cfg(test)]
pub(super) fn looks_of(step: impl FnOnce()) -> u64 {
    let before = LOOKS.get();
    step();
    LOOKS.get() - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_places_are_reused_and_old_generations_are_gone() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        let old = slab.generation(a);
        assert_eq!(slab.remove(a), 'a');
        assert!(!slab.holds(a, old) && slab.holds(b, slab.generation(b)));
        let c = slab.insert('c');
        assert_eq!(c, a, "the freed place is reused");
        assert!(!slab.holds(c, old), "by another occupant");
        assert_eq!((slab[c], slab.len()), ('c', 2));
        assert!(!slab.holds(99, 0));
    }
}
