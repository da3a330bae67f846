//! Calls about adapters.

use lockstep_proto::pb::lockstep::{
    AdapterList, AdapterReply, ListAdaptersRequest, LoadAdapterRequest, UnloadAdapterRequest,
    adapter_reply,
};
use lockstep_types::request::RequestError;

use super::SchedulerClient;

impl SchedulerClient {
    /// Lists the adapters that requests may name.
    ///
    /// # Errors
    /// `Unavailable` if the scheduler does not answer in time.
    pub async fn adapters(&self) -> Result<AdapterList, RequestError> {
        let mut client = self.client()?;
        self.answer(client.list_adapters(ListAdaptersRequest {}))
            .await
    }

    /// Loads an adapter. Waits until all ranks have it, and returns all that there are.
    ///
    /// # Errors
    /// The reason why nothing changed, or `Unavailable`.
    pub async fn load_adapter(
        &self,
        wanted: LoadAdapterRequest,
    ) -> Result<AdapterList, RequestError> {
        let mut client = self.client()?;
        let reply = client.load_adapter(wanted).await;
        self.adapter_list(reply.map_err(|_| self.disconnected())?.into_inner())
    }

    /// Unloads an adapter, and returns those that are left.
    ///
    /// # Errors
    /// The reason why nothing changed, or `Unavailable`.
    pub async fn unload_adapter(&self, name: String) -> Result<AdapterList, RequestError> {
        let mut client = self.client()?;
        let reply = client.unload_adapter(UnloadAdapterRequest { name });
        self.adapter_list(self.answer(reply).await?)
    }

    fn adapter_list(&self, reply: AdapterReply) -> Result<AdapterList, RequestError> {
        match reply.kind {
            Some(adapter_reply::Kind::Adapters(list)) => Ok(list),
            Some(adapter_reply::Kind::Error(error)) => Err(error.into()),
            None => Err(self.disconnected()),
        }
    }
}
