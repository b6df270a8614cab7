//! How the time types look in JSON: nanoseconds as plain numbers, a TDF as its text (`"10"`, `"3/2"`).
//!
//! `core/vtime` is also compiled into the blob and stays free of serde, so the mapping lives here, for use with
//! `#[serde(with = "wire::virt_ns")]`.

macro_rules! ns_wire {
    ($(#[$doc:meta])* $module:ident, $type:ident) => {
        $(#[$doc])*
        pub mod $module {
            use diecast_core_vtime::$type;
            use serde::{Deserialize, Deserializer, Serializer};
            /// As a number of nanoseconds.
            pub fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u64(value.0)
            }
            /// From a number of nanoseconds.
            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                u64::deserialize(deserializer).map($type)
            }
        }
    };
}

ns_wire!(
    /// [`VirtNs`](diecast_core_vtime::VirtNs).
    virt_ns,
    VirtNs
);
ns_wire!(
    /// [`RealNs`](diecast_core_vtime::RealNs).
    real_ns,
    RealNs
);
ns_wire!(
    /// [`VirtSpan`](diecast_core_vtime::VirtSpan).
    virt_span,
    VirtSpan
);
ns_wire!(
    /// [`RealSpan`](diecast_core_vtime::RealSpan).
    real_span,
    RealSpan
);

/// [`Tdf`](diecast_core_vtime::Tdf) as text.
pub mod tdf {
    use diecast_core_vtime::Tdf;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// As text: `"10"` or `"3/2"`.
    pub fn serialize<S: Serializer>(value: &Tdf, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// From text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tdf, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// An optional [`Tdf`](diecast_core_vtime::Tdf): text or `null`.
pub mod tdf_option {
    use diecast_core_vtime::Tdf;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// As text or `null`.
    pub fn serialize<S: Serializer>(value: &Option<Tdf>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(tdf) => serializer.collect_str(tdf),
            None => serializer.serialize_none(),
        }
    }

    /// From text or `null`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Tdf>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|t| t.parse().map_err(D::Error::custom)).transpose()
    }
}
