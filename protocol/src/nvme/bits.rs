//! How bit fields, numeric enums and wire layouts are declared.
//!
//! A bit field is declared once, as `name / with_name: type [high:low]`, and
//! never masked by hand at the place of use. That declared fields fit the
//! integer and do not overlap is checked at compile time.

/// A type that a bit field can have.
pub(crate) trait BitValue: Copy {
    /// The value from the field's bits, shifted down to bit 0.
    fn from_bits(bits: u64) -> Self;
    /// The field's bits, at bit 0.
    fn into_bits(self) -> u64;
}

impl BitValue for bool {
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
    fn into_bits(self) -> u64 {
        u64::from(self)
    }
}

macro_rules! integer_bit_value {
    ($($int:ty),*) => {$(
        impl BitValue for $int {
            fn from_bits(bits: u64) -> Self {
                // A field is at most as wide as its type: `bit_fields!` asserts it.
                bits as $int
            }
            fn into_bits(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}
integer_bit_value!(u8, u16, u32, u64);

/// The mask of bits `high..=low`, both inclusive.
pub(crate) const fn mask(high: u32, low: u32) -> u64 {
    assert!(high >= low && high < 64);
    (u64::MAX >> (63 - (high - low))) << low
}

/// Declares a little-endian integer on the wire and its named bit fields.
macro_rules! bit_fields {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $repr:ty {
            $($(#[$field_meta:meta])* $get:ident / $set:ident: $ty:ty [$high:literal : $low:literal]),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name([u8; size_of::<$repr>()]);

        const _: () = {
            #[allow(unused_mut)]
            let mut used = 0u64;
            $(
                assert!($high < 8 * size_of::<$repr>() as u32, "a field must fit the integer");
                assert!($high - $low < 8 * size_of::<$ty>() as u32, "a field must fit its type");
                let mask = $crate::nvme::bits::mask($high, $low);
                assert!(used & mask == 0, "fields must not overlap");
                used |= mask;
            )*
            let _ = used;
        };

        #[allow(dead_code)]
        impl $name {
            /// All bits that have a name.
            pub const DEFINED: $repr =
                (0 $(| $crate::nvme::bits::mask($high, $low))*) as $repr;

            /// From the integer as a register or dword holds it.
            pub const fn from_raw(raw: $repr) -> Self {
                Self(raw.to_le_bytes())
            }

            /// The integer as a register or dword holds it.
            pub const fn raw(self) -> $repr {
                <$repr>::from_le_bytes(self.0)
            }

            /// Whether a bit without a name is set.
            pub const fn has_undefined_bits(self) -> bool {
                self.raw() | Self::DEFINED != Self::DEFINED
            }

            $(
                $(#[$field_meta])*
                pub fn $get(self) -> $ty {
                    let mask = const { $crate::nvme::bits::mask($high, $low) };
                    $crate::nvme::bits::BitValue::from_bits((u64::from(self.raw()) & mask) >> $low)
                }

                #[doc = concat!("With [`Self::", stringify!($get), "`] set; bits of `value` beyond the field are dropped.")]
                #[must_use]
                pub fn $set(self, value: $ty) -> Self {
                    let mask = const { $crate::nvme::bits::mask($high, $low) };
                    let bits = $crate::nvme::bits::BitValue::into_bits(value);
                    Self::from_raw(((u64::from(self.raw()) & !mask) | ((bits << $low) & mask)) as $repr)
                }
            )*
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($get), &self.$get()))*
                    .finish()
            }
        }
    };
}
pub(crate) use bit_fields;

/// Declares an enum of known numbers, with `from_raw` (None for others) and `raw`.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $repr:ty {
            $($(#[$variant_meta:meta])* $variant:ident = $value:literal),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $value),*
        }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The value with this number, if it is a known one.
            pub const fn from_raw(raw: $repr) -> Option<Self> {
                match raw {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            pub const fn raw(self) -> $repr {
                self as $repr
            }
        }
    };
}
pub(crate) use wire_enum;

/// Asserts a wire structure's size and the offsets of its fields, in bytes.
macro_rules! wire_layout {
    ($name:ty, $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == 1);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}
pub(crate) use wire_layout;

#[cfg(test)]
mod tests {
    // The macro declares public items, here inside a private module.
    #![allow(unreachable_pub)]

    bit_fields! {
        /// A register with fields at both ends.
        pub struct Sample: u64 {
            /// Low bits.
            low / with_low: u16 [15:0],
            /// One bit.
            flag / with_flag: bool [16:16],
            /// High bits.
            high / with_high: u8 [63:60],
        }
    }

    #[test]
    fn fields_are_where_they_were_declared() {
        assert_eq!(Sample::default().with_low(0x1234).raw(), 0x1234);
        assert_eq!(Sample::default().with_flag(true).raw(), 1 << 16);
        assert_eq!(Sample::default().with_high(0xF).raw(), 0xF << 60);
        let all = Sample::from_raw(u64::MAX);
        assert_eq!((all.low(), all.flag(), all.high()), (0xFFFF, true, 0xF));
        assert_eq!(all.with_low(0).with_flag(false).with_high(0).raw(), 0x0FFF_FFFF_FFFE_0000);
        assert_eq!(Sample::default().with_low(1).0, [1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_value_too_large_does_not_spill() {
        assert_eq!(Sample::default().with_high(0xFF).raw(), 0xF << 60);
    }

    #[test]
    fn undefined_bits_are_seen() {
        assert!(!Sample::from_raw(Sample::DEFINED).has_undefined_bits());
        assert!(Sample::from_raw(1 << 17).has_undefined_bits());
    }
}
