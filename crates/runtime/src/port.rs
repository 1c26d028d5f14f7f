//! One input or output of a program: packing and unpacking.

use std::borrow::Cow;

use tpuflow_ir::error::LimitError;
use tpuflow_ir::program::Port as Described;
use tpuflow_ir::{DType, Program};

use crate::arrange::{Arrangement, WordLayout};
use crate::convert::{Channel, Meaning, User, from_stored, to_stored};
use crate::state::StateError;

/// Why arrays cannot be packed or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program's description contradicts itself or asks for what is not known.
    #[error("port \"{name}\": {reason}")]
    Port {
        /// Name of the port.
        name: String,
        /// The error.
        reason: PortError,
    },
    /// Another number of bytes than the port has.
    #[error("\"{name}\": {given} bytes given, it has {expected}")]
    Size {
        /// Name of the port.
        name: String,
        /// Bytes given.
        given: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// An integer that the stored type does not hold.
    #[error("input \"{name}\": indices beyond {lo} to {hi}, first at element {at}")]
    Index {
        /// Name of the port.
        name: String,
        /// Least index.
        lo: i64,
        /// Largest index.
        hi: i64,
        /// Number of the element.
        at: usize,
    },
    /// Another number of arrays than the program has ports.
    #[error("{given} arrays given, the program takes {expected}")]
    Count {
        /// Arrays given.
        given: usize,
        /// Arrays expected.
        expected: usize,
    },
    /// A state that cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The machine reports an error.
    #[error(transparent)]
    Machine(#[from] tpuflow_simulator::SimError),
}

/// Why a port's description is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Numbers that cannot be computed with.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// A view that is not the whole of the shape.
    #[error("it does not lie in memory as its shape says")]
    Place,
    /// An element type that is not known.
    #[error("element type {0} cannot be packed")]
    ElementType(String),
    /// Another shape in the model than on the device.
    #[error("the model's shape is not that of the stored tensor")]
    Shape,
    /// Scales that are not one for each channel.
    #[error("{scales} scales for {channels} channels")]
    Scales {
        /// Scales given.
        scales: usize,
        /// Channels there are.
        channels: usize,
    },
}

/// Packs and unpacks one input or output.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Shape in the model.
    pub shape: Vec<usize>,
    /// Element type in the model (NumPy name).
    pub dtype: String,
    /// Cache words it takes.
    pub words: usize,
    /// Bytes of a cache word.
    pub word: usize,
    /// Element type on the device.
    pub stored: DType,
    /// `x = scale * (q - zero_point)`, one scale or one per channel; empty for indices, floats and words.
    pub scale: Vec<f32>,
    /// Code of real zero.
    pub zero_point: i32,
    user: User,
    meaning: Meaning,
    arrangement: Arrangement,
    lay: WordLayout,
    channel: Channel,
}

impl Port {
    /// The description of a port.
    ///
    /// # Errors
    /// [`Error::Port`]: it contradicts itself.
    pub fn new(port: &Described, word: usize) -> Result<Self, Error> {
        let contradicts = |reason| Error::Port { name: port.name.clone(), reason };
        port.check_limits(word).map_err(|error| contradicts(error.into()))?;
        let view = &port.view;
        if !port.is_whole(word, true) {
            return Err(contradicts(PortError::Place));
        }
        let raw = port.is_raw(word);
        let (name, shape, permutation, dtype) = match &port.source {
            Some(s) => (s.name.clone(), s.shape.clone(), s.permutation.clone(), s.dtype.clone()),
            None => {
                let dtype = match &port.quant {
                    Some(quant) if !quant.scale.is_empty() => "float32",
                    _ if raw => "uint8",
                    _ => port.dtype.name(),
                };
                (port.name.clone(), port.shape.clone(), (0..port.shape.len()).collect(), dtype.to_owned())
            }
        };
        let fail = |reason| Err(Error::Port { name: name.clone(), reason });
        let Some(user) = User::from_name(&dtype) else { return fail(PortError::ElementType(dtype)) };
        let mut axes = permutation.clone();
        axes.sort_unstable();
        let elements = port.shape.iter().product::<usize>();
        if axes != (0..shape.len()).collect::<Vec<_>>() || shape.iter().product::<usize>() != elements {
            return fail(PortError::Shape);
        }
        let meaning = if raw {
            Meaning::Codes(0)
        } else {
            Meaning::of(user, port.dtype, port.quant.as_ref().filter(|quant| !quant.scale.is_empty()))
        };
        let channels = view.channels as usize;
        if let Meaning::Scaled(scale, _) = &meaning
            && scale.len() != 1
            && scale.len() != channels
        {
            return fail(PortError::Scales { scales: scale.len(), channels });
        }
        let stride = permutation.last().map_or(1, |&axis| shape[axis + 1..].iter().product());
        let (scale, zero_point) = match &port.quant {
            Some(quant) if !port.dtype.is_float() => (quant.scale.clone(), quant.zero_point),
            _ => (vec![], 0),
        };
        Ok(Self {
            words: (view.bytes(word) / word as u64) as usize,
            word,
            stored: port.dtype,
            scale,
            zero_point,
            user,
            meaning,
            arrangement: Arrangement::new(&shape, &permutation, &port.shape),
            lay: WordLayout { pixel_bytes: view.pixel_bytes as usize, row_bytes: view.row_bytes(word) as usize },
            channel: Channel { stride, count: channels },
            name,
            shape,
            dtype,
        })
    }

    /// Bytes of the user's array.
    #[must_use]
    pub fn user_bytes(&self) -> usize {
        self.arrangement.elements() * self.user.bytes()
    }

    /// Bytes of its cache words.
    #[must_use]
    pub fn word_bytes(&self) -> usize {
        self.words * self.word
    }

    /// Packs a user's array into cache words; padding is zero.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::Index`].
    pub fn pack(&self, array: &[u8]) -> Result<Vec<u8>, Error> {
        self.expect(array.len(), self.user_bytes())?;
        let stored = to_stored(array, self.user, self.stored, &self.meaning, self.channel).map_err(|at| {
            let (lo, hi) = self.stored.range();
            Error::Index { name: self.name.clone(), lo, hi, at }
        })?;
        let mut words = vec![0; self.word_bytes()];
        match self.stored.bytes() {
            1 => self.arrangement.store::<1>(&stored, &mut words, self.lay),
            2 => self.arrangement.store::<2>(&stored, &mut words, self.lay),
            4 => self.arrangement.store::<4>(&stored, &mut words, self.lay),
            _ => self.arrangement.store::<8>(&stored, &mut words, self.lay),
        }
        Ok(words)
    }

    /// Takes the user's array out of cache words; what lies in their padding is ignored.
    ///
    /// # Errors
    /// [`Error::Size`].
    pub fn unpack(&self, words: &[u8]) -> Result<Vec<u8>, Error> {
        self.expect(words.len(), self.word_bytes())?;
        let mut stored = vec![0; self.arrangement.elements() * self.stored.bytes()];
        match self.stored.bytes() {
            1 => self.arrangement.load::<1>(words, &mut stored, self.lay),
            2 => self.arrangement.load::<2>(words, &mut stored, self.lay),
            4 => self.arrangement.load::<4>(words, &mut stored, self.lay),
            _ => self.arrangement.load::<8>(words, &mut stored, self.lay),
        }
        Ok(from_stored(Cow::Owned(stored), self.user, self.stored, &self.meaning, self.channel).into_owned())
    }

    /// Whether so many bytes are those of the port.
    pub(crate) fn expect(&self, given: usize, expected: usize) -> Result<(), Error> {
        if given == expected { Ok(()) } else { Err(Error::Size { name: self.name.clone(), given, expected }) }
    }
}

/// All ports of a program.
#[derive(Clone, Debug)]
pub struct Codec {
    /// Inputs in the model's order.
    pub inputs: Vec<Port>,
    /// Outputs in the model's order.
    pub outputs: Vec<Port>,
}

impl Codec {
    /// The ports of a program.
    ///
    /// # Errors
    /// [`Error::Port`].
    pub fn new(program: &Program) -> Result<Self, Error> {
        let word = program.machine.word();
        let ports = |ports: &[Described]| ports.iter().map(|port| Port::new(port, word)).collect::<Result<_, _>>();
        Ok(Self { inputs: ports(&program.inputs)?, outputs: ports(&program.outputs)? })
    }
}
