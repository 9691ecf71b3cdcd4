//! Protocol buffers, read: one field after the other, nothing copied.

/// No message: it broke off, or it was never one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// The deepest that groups, which nobody uses any more, may stand in each other.
const GROUPS_MAX: usize = 100;

/// The greatest number of a field.
const FIELD_MAX: u64 = (1 << 29) - 1;

/// The fields of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

/// The value of a field, as far as it can be told without knowing the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
    /// Something that no field here has.
    Other,
}

impl<'a> Value<'a> {
    pub(crate) fn number(self) -> Result<u64, Unreadable> {
        match self {
            Value::Number(number) => Ok(number),
            _ => Err(Unreadable),
        }
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], Unreadable> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Unreadable),
        }
    }
}

/// How a value is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Varint,
    Eight,
    Delimited,
    GroupBegins,
    GroupEnds,
    Four,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    /// The number of the next field, and its value; `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Unreadable> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (field, encoding) = self.tag()?;
        let value = match encoding {
            Encoding::Varint => Value::Number(self.varint()?),
            Encoding::Delimited => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).map_err(|_| Unreadable)?)?)
            }
            Encoding::Eight => self.take(8).map(|_| Value::Other)?,
            Encoding::Four => self.take(4).map(|_| Value::Other)?,
            Encoding::GroupBegins => self.skip_group(field).map(|()| Value::Other)?,
            Encoding::GroupEnds => return Err(Unreadable),
        };
        Ok(Some((field, value)))
    }

    /// Goes behind the end of a group that has begun.
    #[cold]
    fn skip_group(&mut self, field: u32) -> Result<(), Unreadable> {
        // Bound: `GROUPS_MAX`; one more is no message.
        let mut open = vec![field];
        while let Some(innermost) = open.last().copied() {
            let (field, encoding) = self.tag()?;
            match encoding {
                Encoding::Varint => self.varint().map(drop)?,
                Encoding::Delimited => {
                    let length = usize::try_from(self.varint()?).map_err(|_| Unreadable)?;
                    self.take(length).map(drop)?;
                }
                Encoding::Eight => self.take(8).map(drop)?,
                Encoding::Four => self.take(4).map(drop)?,
                Encoding::GroupBegins if open.len() == GROUPS_MAX => return Err(Unreadable),
                Encoding::GroupBegins => open.push(field),
                Encoding::GroupEnds if field == innermost => drop(open.pop()),
                Encoding::GroupEnds => return Err(Unreadable),
            }
        }
        Ok(())
    }

    #[inline]
    fn tag(&mut self) -> Result<(u32, Encoding), Unreadable> {
        let tag = self.varint()?;
        let encoding = match tag & 7 {
            0 => Encoding::Varint,
            1 => Encoding::Eight,
            2 => Encoding::Delimited,
            3 => Encoding::GroupBegins,
            4 => Encoding::GroupEnds,
            5 => Encoding::Four,
            _ => return Err(Unreadable),
        };
        match tag >> 3 {
            field @ 1..=FIELD_MAX => Ok((field as u32, encoding)),
            _ => Err(Unreadable),
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0;
        for place in 0..10 {
            let (byte, rest) = self.rest.split_first().ok_or(Unreadable)?;
            self.rest = rest;
            // Of the tenth byte there is room for one bit.
            if place == 9 && *byte > 1 {
                return Err(Unreadable);
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Unreadable)
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Unreadable)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_one_by_one() {
        type Read = Result<Option<(u32, Value<'static>)>, Unreadable>;
        let rows: [(&'static [u8], Read); 16] = [
            (b"", Ok(None)),
            (b"\x08\x01", Ok(Some((1, Value::Number(1))))),
            (b"\x08\xac\x02", Ok(Some((1, Value::Number(300))))),
            (
                b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                Ok(Some((1, Value::Number(u64::MAX)))),
            ),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", Err(Unreadable)),
            (b"\x08\x80", Err(Unreadable)),
            (b"\x12\x02ab", Ok(Some((2, Value::Bytes(b"ab"))))),
            (b"\x12\x03ab", Err(Unreadable)),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01ab", Err(Unreadable)),
            (b"\x0900000000", Ok(Some((1, Value::Other)))),
            (b"\x0d000", Err(Unreadable)),
            (b"\x0b\x08\x01\x13\x14\x0c", Ok(Some((1, Value::Other)))),
            (b"\x0b\x14", Err(Unreadable)),
            (b"\x0c", Err(Unreadable)),
            (b"\x02\x00", Err(Unreadable)),
            (b"\x0e\x00", Err(Unreadable)),
        ];
        for (bytes, want) in rows {
            assert_eq!(Fields::of(bytes).next(), want, "{bytes:?}");
        }
        let deep = [0x0b].repeat(10_000);
        assert_eq!(Fields::of(&deep).next(), Err(Unreadable));
    }
}
