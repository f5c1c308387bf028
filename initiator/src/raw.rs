//! Bytes and PDUs as the caller likes them: what a test needs to be a hostile or unusual host.
//!
//! Nothing is checked on the way out, and little on the way in: PDUs are cut at their PLEN and
//! handed over as they are.

use std::net::SocketAddr;
use std::sync::Arc;

use raidfabric_protocol::nvme::cqe::Cqe;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::tcp::encode::{self, Encoder, put_data_digest};
use raidfabric_protocol::tcp::pdu::{
    C2hData, CapsuleResp, CommonHeader, IcResp, PduFlags, PduType, R2t, TermReq,
};
use raidfabric_protocol::tcp::rules::{H2cDataFields, IcReqFields};
use raidfabric_protocol::tcp::{DIGEST_BYTES, Digests, PduAlignment, Termination, digest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::Error;

/// The longest PDU that is taken in.
const PDU_BYTES_MAX: usize = 32 << 20;

/// A connection on which nothing is done by itself.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    encoder: Encoder,
}

impl Connection {
    /// A TCP connection, and nothing more.
    ///
    /// # Errors
    /// No connection.
    pub async fn connect(address: SocketAddr) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await;
        let refused = |source| Error::Connect { address, source: Arc::new(source) };
        let stream = stream.map_err(refused)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, encoder: Encoder::default() })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// How PDUs are written from now on.
    pub fn encoder_mut(&mut self) -> &mut Encoder {
        &mut self.encoder
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Sends ICReq, awaits ICResp, and writes PDUs accordingly from now on.
    ///
    /// # Errors
    /// The connection is gone, or something else came.
    pub async fn initialize(
        &mut self,
        digests: Digests,
        hpda: PduAlignment,
    ) -> Result<IcResp, Error> {
        let mut request = Vec::new();
        encode::ic_req(&IcReqFields { hpda, digests, max_r2t: 1 }, &mut request);
        self.send(&request).await?;
        let pdu = self.receive().await?;
        let response: IcResp = pdu.view(PduType::IcResp)?;
        self.encoder = Encoder {
            digests: response.dgst.digests(),
            alignment: PduAlignment::from_wire(response.cpda).unwrap_or_default(),
        };
        Ok(response)
    }

    /// Sends a CapsuleCmd with this entry and in-capsule data.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn send_command(&mut self, sqe: &Sqe, in_capsule: &[u8]) -> Result<(), Error> {
        let bytes = self.command_bytes(sqe, in_capsule);
        self.send(&bytes).await
    }

    /// The bytes of a CapsuleCmd, to be changed before they are sent.
    pub fn command_bytes(&self, sqe: &Sqe, in_capsule: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encoder.capsule_cmd(sqe, in_capsule.len() as u32, &mut bytes);
        self.put_payload(in_capsule, &mut bytes);
        bytes
    }

    /// Sends H2CData.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn send_data(&mut self, fields: &H2cDataFields, payload: &[u8]) -> Result<(), Error> {
        let bytes = self.data_bytes(fields, payload);
        self.send(&bytes).await
    }

    /// The bytes of an H2CData PDU, to be changed before they are sent.
    pub fn data_bytes(&self, fields: &H2cDataFields, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encoder.h2c_data(fields, &mut bytes);
        self.put_payload(payload, &mut bytes);
        bytes
    }

    fn put_payload(&self, payload: &[u8], bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(payload);
        if self.encoder.has_data_digest() && !payload.is_empty() {
            put_data_digest(payload, bytes);
        }
    }

    /// Receives one PDU of any type.
    ///
    /// # Errors
    /// [`Error::Closed`] at the end; a PLEN that is no length.
    pub async fn receive(&mut self) -> Result<Pdu, Error> {
        let mut bytes = vec![0; CommonHeader::BYTES];
        match self.stream.read_exact(&mut bytes).await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Error::Closed);
            }
            outcome => outcome?,
        };
        let header = CommonHeader::read_from_bytes(&bytes).map_err(|_| Error::Closed)?;
        let length = header.plen.get() as usize;
        if !(CommonHeader::BYTES..=PDU_BYTES_MAX).contains(&length) {
            return Err(Error::BadAnswer { command: "PDU", problem: "PLEN is no length" });
        }
        bytes.resize(length, 0);
        self.stream.read_exact(&mut bytes[CommonHeader::BYTES..]).await?;
        Ok(Pdu { header, bytes })
    }

    /// Receives the response to a command; C2HData before it is put together. A command that ends
    /// by SUCCESS has no entry.
    ///
    /// # Errors
    /// As [`Connection::receive`], or another PDU came.
    pub async fn receive_response(&mut self) -> Result<(Option<Cqe>, Vec<u8>), Error> {
        let mut data = Vec::new();
        loop {
            let pdu = self.receive().await?;
            match pdu.pdu_type() {
                Some(PduType::C2hData) => {
                    data.extend_from_slice(pdu.payload());
                    if pdu.header.flags.contains(PduFlags::SUCCESS) {
                        return Ok((None, data));
                    }
                }
                Some(PduType::C2hTermReq) => return Err(Error::Terminated(pdu.termination()?)),
                _ => return Ok((Some(pdu.view::<CapsuleResp>(PduType::CapsuleResp)?.rccqe), data)),
            }
        }
    }

    /// Reads on until the controller's C2HTermReq.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub async fn receive_termination(&mut self) -> Result<Termination, Error> {
        loop {
            let pdu = self.receive().await?;
            if pdu.pdu_type() == Some(PduType::C2hTermReq) {
                return pdu.termination();
            }
        }
    }

    /// Reads on until the controller closes; returns what came before, cut off at a limit.
    ///
    /// # Errors
    /// The system's; a reset counts as an end.
    pub async fn receive_end(&mut self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut part = vec![0; 64 * 1024];
        loop {
            match self.stream.read(&mut part).await {
                Ok(0) => return Ok(bytes),
                Ok(count) if bytes.len() < PDU_BYTES_MAX => bytes.extend_from_slice(&part[..count]),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Ok(bytes);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the connection with a TCP reset.
    ///
    /// # Errors
    /// The system's.
    pub fn reset(self) -> Result<(), Error> {
        self.stream.set_zero_linger()?;
        Ok(())
    }
}

/// A PDU as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// Its common header.
    pub header: CommonHeader,
    /// All its bytes.
    pub bytes: Vec<u8>,
}

impl Pdu {
    /// Its type; `None` if reserved.
    pub fn pdu_type(&self) -> Option<PduType> {
        PduType::from_code(self.header.pdu_type)
    }

    /// The payload, without its digest; empty if PDO makes no sense.
    pub fn payload(&self) -> &[u8] {
        let (start, end) = (usize::from(self.header.pdo), self.bytes.len());
        let trailer = if self.has_data_digest() { DIGEST_BYTES } else { 0 };
        match start {
            0 => &[],
            _ => self.bytes.get(start..end.saturating_sub(trailer)).unwrap_or(&[]),
        }
    }

    fn has_data_digest(&self) -> bool {
        self.header.flags.contains(PduFlags::DDGSTF)
    }

    /// Whether the digests that it carries match.
    pub fn digests_match(&self) -> bool {
        let hlen = usize::from(self.header.hlen);
        let matches = |covered: Option<&[u8]>, at: usize| {
            let sent = self.bytes.get(at..at + DIGEST_BYTES);
            match (covered, sent) {
                (Some(covered), Some(sent)) => digest::crc32c(covered).to_le_bytes() == sent,
                _ => false,
            }
        };
        let header =
            !self.header.flags.contains(PduFlags::HDGSTF) || matches(self.bytes.get(..hlen), hlen);
        let data = !self.has_data_digest()
            || matches(Some(self.payload()), self.bytes.len().saturating_sub(DIGEST_BYTES));
        header && data
    }

    /// Its header as a wire struct.
    ///
    /// # Errors
    /// It is another PDU, or short.
    pub fn view<T>(&self, expected: PduType) -> Result<T, Error>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let bad = |problem| Error::BadAnswer { command: "PDU", problem };
        if self.pdu_type() != Some(expected) {
            return Err(bad("another type than expected"));
        }
        let (view, _) = T::read_from_prefix(&self.bytes).map_err(|_| bad("too short"))?;
        Ok(view)
    }

    /// As an R2T.
    ///
    /// # Errors
    /// It is another PDU.
    pub fn r2t(&self) -> Result<R2t, Error> {
        self.view(PduType::R2t)
    }

    /// As C2HData.
    ///
    /// # Errors
    /// It is another PDU.
    pub fn c2h_data(&self) -> Result<C2hData, Error> {
        self.view(PduType::C2hData)
    }

    /// As the entry of a CapsuleResp.
    ///
    /// # Errors
    /// It is another PDU.
    pub fn response(&self) -> Result<Cqe, Error> {
        Ok(self.view::<CapsuleResp>(PduType::CapsuleResp)?.rccqe)
    }

    /// As a C2HTermReq.
    ///
    /// # Errors
    /// It is another PDU.
    pub fn termination(&self) -> Result<Termination, Error> {
        let term: TermReq = self.view(PduType::C2hTermReq)?;
        Ok(Termination { fes: term.fes.get(), fei: term.fei.get() })
    }
}
