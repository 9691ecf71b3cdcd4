//! Reads protocol buffers: one field after the other, nothing copied.

/// The message is truncated or invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtobufError;

/// Maximum depth of groups, a deprecated feature.
const GROUPS_MAX: usize = 100;

/// Maximum number of a field.
const FIELD_MAX: u64 = (1 << 29) - 1;

/// The fields of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtobufFields<'a> {
    rest: &'a [u8],
}

/// The value of a field, as far as its wire type tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtobufValue<'a> {
    Number(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
    /// A type that no field here has.
    Other,
}

impl<'a> ProtobufValue<'a> {
    pub(crate) fn number(self) -> Result<u64, ProtobufError> {
        match self {
            ProtobufValue::Number(number) => Ok(number),
            _ => Err(ProtobufError),
        }
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self {
            ProtobufValue::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError),
        }
    }
}

/// Wire type: the encoding of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtobufWireType {
    Varint,
    Fixed64,
    Delimited,
    GroupStart,
    GroupEnd,
    Fixed32,
}

impl<'a> ProtobufFields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> ProtobufFields<'a> {
        ProtobufFields { rest: message }
    }

    /// The number of the next field, and its value; `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, ProtobufValue<'a>)>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (field, encoding) = self.tag()?;
        let value = match encoding {
            ProtobufWireType::Varint => ProtobufValue::Number(self.varint()?),
            ProtobufWireType::Delimited => {
                let length = self.varint()?;
                ProtobufValue::Bytes(
                    self.take(usize::try_from(length).map_err(|_| ProtobufError)?)?,
                )
            }
            ProtobufWireType::Fixed64 => self.take(8).map(|_| ProtobufValue::Other)?,
            ProtobufWireType::Fixed32 => self.take(4).map(|_| ProtobufValue::Other)?,
            ProtobufWireType::GroupStart => {
                self.skip_group(field).map(|()| ProtobufValue::Other)?
            }
            ProtobufWireType::GroupEnd => return Err(ProtobufError),
        };
        Ok(Some((field, value)))
    }

    /// Skips the rest of a group.
    #[cold]
    fn skip_group(&mut self, field: u32) -> Result<(), ProtobufError> {
        // Bound: `GROUPS_MAX`; one more is an error.
        let mut open = vec![field];
        while let Some(innermost) = open.last().copied() {
            let (field, encoding) = self.tag()?;
            match encoding {
                ProtobufWireType::Varint => self.varint().map(drop)?,
                ProtobufWireType::Delimited => {
                    let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError)?;
                    self.take(length).map(drop)?;
                }
                ProtobufWireType::Fixed64 => self.take(8).map(drop)?,
                ProtobufWireType::Fixed32 => self.take(4).map(drop)?,
                ProtobufWireType::GroupStart if open.len() == GROUPS_MAX => {
                    return Err(ProtobufError);
                }
                ProtobufWireType::GroupStart => open.push(field),
                ProtobufWireType::GroupEnd if field == innermost => drop(open.pop()),
                ProtobufWireType::GroupEnd => return Err(ProtobufError),
            }
        }
        Ok(())
    }

    #[inline]
    fn tag(&mut self) -> Result<(u32, ProtobufWireType), ProtobufError> {
        let tag = self.varint()?;
        let encoding = match tag & 7 {
            0 => ProtobufWireType::Varint,
            1 => ProtobufWireType::Fixed64,
            2 => ProtobufWireType::Delimited,
            3 => ProtobufWireType::GroupStart,
            4 => ProtobufWireType::GroupEnd,
            5 => ProtobufWireType::Fixed32,
            _ => return Err(ProtobufError),
        };
        match tag >> 3 {
            field @ 1..=FIELD_MAX => Ok((field as u32, encoding)),
            _ => Err(ProtobufError),
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut number = 0;
        for place in 0..10 {
            let (byte, rest) = self.rest.split_first().ok_or(ProtobufError)?;
            self.rest = rest;
            // Only one bit of the tenth byte fits.
            if place == 9 && *byte > 1 {
                return Err(ProtobufError);
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ProtobufError)
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(ProtobufError)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_one_by_one() {
        type ProtobufFieldResult = Result<Option<(u32, ProtobufValue<'static>)>, ProtobufError>;
        let rows: [(&'static [u8], ProtobufFieldResult); 16] = [
            (b"", Ok(None)),
            (b"\x08\x01", Ok(Some((1, ProtobufValue::Number(1))))),
            (b"\x08\xac\x02", Ok(Some((1, ProtobufValue::Number(300))))),
            (
                b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                Ok(Some((1, ProtobufValue::Number(u64::MAX)))),
            ),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", Err(ProtobufError)),
            (b"\x08\x80", Err(ProtobufError)),
            (b"\x12\x02ab", Ok(Some((2, ProtobufValue::Bytes(b"ab"))))),
            (b"\x12\x03ab", Err(ProtobufError)),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01ab", Err(ProtobufError)),
            (b"\x0900000000", Ok(Some((1, ProtobufValue::Other)))),
            (b"\x0d000", Err(ProtobufError)),
            (b"\x0b\x08\x01\x13\x14\x0c", Ok(Some((1, ProtobufValue::Other)))),
            (b"\x0b\x14", Err(ProtobufError)),
            (b"\x0c", Err(ProtobufError)),
            (b"\x02\x00", Err(ProtobufError)),
            (b"\x0e\x00", Err(ProtobufError)),
        ];
        for (bytes, want) in rows {
            assert_eq!(ProtobufFields::new(bytes).next(), want, "{bytes:?}");
        }
        let deep = [0x0b].repeat(10_000);
        assert_eq!(ProtobufFields::new(&deep).next(), Err(ProtobufError));
    }
}
