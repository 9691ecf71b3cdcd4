//! Doubly linked lists whose links are fields of slab entries: an entry can be in several lists,
//! joins and leaves each in constant time, and needs no allocation for it.

use super::slab::{NO_INDEX, Slab};

/// The neighbours of an entry in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListLinks {
    previous: u32,
    next: u32,
}

impl ListLinks {
    /// Links of an entry that is in no list.
    pub(super) const NONE: ListLinks = ListLinks { previous: NO_INDEX, next: NO_INDEX };

    /// The entry in front of this one.
    pub(super) fn previous(self) -> Option<u32> {
        (self.previous != NO_INDEX).then_some(self.previous)
    }

    /// The entry behind this one.
    pub(super) fn next(self) -> Option<u32> {
        (self.next != NO_INDEX).then_some(self.next)
    }
}

/// Chooses the links of an entry that belong to the list at hand.
type LinksOf<E> = fn(&mut Slab<E>, u32) -> &mut ListLinks;

/// The two ends of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexList {
    first: u32,
    last: u32,
}

impl IndexList {
    pub(super) const EMPTY: IndexList = IndexList { first: NO_INDEX, last: NO_INDEX };

    pub(super) fn first(self) -> Option<u32> {
        (self.first != NO_INDEX).then_some(self.first)
    }

    pub(super) fn last(self) -> Option<u32> {
        (self.last != NO_INDEX).then_some(self.last)
    }

    pub(super) fn is_empty(self) -> bool {
        self.first == NO_INDEX
    }

    /// Appends an entry that is in no list of this kind.
    pub(super) fn push_back<E>(&mut self, slab: &mut Slab<E>, index: u32, links: LinksOf<E>) {
        self.insert_after(self.last(), slab, index, links);
    }

    /// Inserts an entry that is in no list of this kind behind another one, or at the front.
    pub(super) fn insert_after<E>(
        &mut self,
        previous: Option<u32>,
        slab: &mut Slab<E>,
        index: u32,
        links: LinksOf<E>,
    ) {
        let next = match previous {
            None => std::mem::replace(&mut self.first, index),
            Some(previous) => std::mem::replace(&mut links(slab, previous).next, index),
        };
        match next {
            NO_INDEX => self.last = index,
            next => links(slab, next).previous = index,
        }
        *links(slab, index) = ListLinks { previous: previous.unwrap_or(NO_INDEX), next };
    }

    /// Takes an entry out of this list.
    pub(super) fn unlink<E>(&mut self, slab: &mut Slab<E>, index: u32, links: LinksOf<E>) {
        let ListLinks { previous, next } = std::mem::replace(links(slab, index), ListLinks::NONE);
        match previous {
            NO_INDEX => self.first = next,
            previous => links(slab, previous).next = next,
        }
        match next {
            NO_INDEX => self.last = previous,
            next => links(slab, next).previous = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_join_at_the_front_in_the_middle_and_at_the_end() {
        let own: LinksOf<ListLinks> = |slab, index| &mut slab[index];
        let (mut slab, mut list) = (Slab::new(), IndexList::EMPTY);
        for previous in [None, None, Some(0), Some(1), Some(2)] {
            let index = slab.insert(ListLinks::NONE);
            list.insert_after(previous, &mut slab, index, own);
        }
        let expected = vec![1, 3, 0, 2, 4];
        assert_eq!(order(list, &mut slab), (expected.clone(), expected));
    }

    fn order(list: IndexList, slab: &mut Slab<ListLinks>) -> (Vec<u32>, Vec<u32>) {
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let mut at = list.first;
        while at != NO_INDEX {
            forward.push(at);
            at = slab[at].next;
        }
        let mut at = list.last;
        while at != NO_INDEX {
            backward.push(at);
            at = slab[at].previous;
        }
        backward.reverse();
        (forward, backward)
    }

    #[test]
    fn entries_leave_from_both_ends_and_from_the_middle() {
        let own: LinksOf<ListLinks> = |slab, index| &mut slab[index];
        // The entries that leave, and the order of those that stay.
        let cases: [(&[u32], &[u32]); 5] = [
            (&[], &[0, 1, 2]),
            (&[0], &[1, 2]),
            (&[1], &[0, 2]),
            (&[2], &[0, 1]),
            (&[1, 0, 2], &[]),
        ];
        for (leaving, left) in cases {
            let (mut slab, mut list) = (Slab::new(), IndexList::EMPTY);
            for _ in 0..3 {
                let index = slab.insert(ListLinks::NONE);
                list.push_back(&mut slab, index, own);
            }
            for &index in leaving {
                list.unlink(&mut slab, index, own);
            }
            assert_eq!(order(list, &mut slab), (left.to_vec(), left.to_vec()), "{leaving:?}");
            assert_eq!(list.is_empty(), left.is_empty());
            assert_eq!((list.first(), list.last()), (left.first().copied(), left.last().copied()));
        }
    }
}
