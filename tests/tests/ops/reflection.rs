//! A client that only knows the interface from the server's reflection service.

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, Value};
use runcrust_tests::container::end;
use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Ops, on_each_delegate};
use serde_json::json;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::mount_info;

/// Sends one request to the reflection service.
fn reflect(ops: &Ops, socket: &std::path::Path, request: MessageRequest) -> MessageResponse {
    let mut client = ServerReflectionClient::new(ops.channel(socket));
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(request),
    };
    let answer = ops.block_on(async {
        let requests = Request::new(tokio_stream::once(request));
        let mut answers = client.server_reflection_info(requests).await?.into_inner();
        answers.message().await
    });
    let answer = answer.expect("an answer").expect("an answer");
    answer.message_response.expect("an answer")
}

fn services(ops: &Ops, socket: &std::path::Path) -> Vec<String> {
    let MessageResponse::ListServicesResponse(listed) =
        reflect(ops, socket, MessageRequest::ListServices(String::new()))
    else {
        panic!("an answer of another type");
    };
    let mut names: Vec<String> = listed.service.into_iter().map(|it| it.name).collect();
    names.sort();
    names
}

/// Returns the file descriptors that the server has for a name.
fn descriptors_of(ops: &Ops, socket: &std::path::Path, name: &str) -> DescriptorPool {
    let request = MessageRequest::FileContainingSymbol(name.to_owned());
    let MessageResponse::FileDescriptorResponse(files) = reflect(ops, socket, request) else {
        panic!("an answer of another type");
    };
    let mut pool = DescriptorPool::new();
    for file in files.file_descriptor_proto {
        let file = prost_reflect::prost_types::FileDescriptorProto::decode(&*file).expect("a file");
        pool.add_file_descriptor_proto(file).expect("a file");
    }
    pool
}

/// A codec that leaves messages as bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(to, &item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; prost::bytes::Buf::remaining(from)];
        prost::bytes::Buf::copy_to_slice(from, &mut item);
        Ok(Some(item))
    }
}

/// Calls a method of `crust.v1.Runtime` by its name.
fn call(
    ops: &Ops,
    pool: &DescriptorPool,
    method: &str,
    fields: &[(&str, Value)],
) -> Result<DynamicMessage, Status> {
    let service = pool
        .get_service_by_name("crust.v1.Runtime")
        .expect("the service");
    let method = service
        .methods()
        .find(|it| it.name() == method)
        .expect("the method");
    let mut request = DynamicMessage::new(method.input());
    for (name, value) in fields {
        request.set_field_by_name(name, value.clone());
    }
    let path = format!("/{}/{}", service.full_name(), method.name());
    let path = PathAndQuery::try_from(path).expect("a path");
    let mut client = Grpc::new(ops.channel(ops.socket()));
    let answer = ops.block_on(async {
        client.ready().await.expect("a connection");
        let request = Request::new(request.encode_to_vec());
        client.unary(request, path, Bytes).await
    })?;
    let answer = DynamicMessage::decode(method.output(), &*answer.into_inner());
    Ok(answer.expect("an answer of the method's type"))
}

/// Returns the value of a numeric field.
fn number(message: &DynamicMessage, field: &str) -> i64 {
    let value = message.get_field_by_name(field).expect(field);
    value
        .as_i64()
        .unwrap_or_else(|| panic!("{field}: {value:?}"))
}

#[test]
fn each_socket_describes_its_services() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let own = [
        (ops.socket(), "crust.v1.Runtime"),
        (
            ops.crust_socket(),
            "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement",
        ),
    ];
    for (socket, name) in own {
        assert_eq!(services(&ops, socket), [name, "grpc.health.v1.Health"]);
        let pool = descriptors_of(&ops, socket, name);
        let service = pool.get_service_by_name(name).expect("the service");
        assert!(service.methods().len() >= 4, "{service:?}");
    }
}

on_each_delegate! {
    fn a_volume_is_used_through_reflection_alone(delegate: Delegate) {
        life(delegate);
    }
}

fn life(delegate: Delegate) {
    let (node, ops) = Ops::with_node(delegate);
    let device = node.formatted("xfs");
    let target = node.target("pod-a", "pv-1");
    let pool = descriptors_of(&ops, ops.socket(), "crust.v1.Runtime.RuntimeStageVolume");
    let request = pool
        .get_message_by_name("crust.v1.RuntimeStageVolumeRequest")
        .expect("the request");
    let numbers = request
        .fields()
        .map(|field| (field.number(), field.name().to_owned()));
    let numbers: Vec<_> = numbers.collect();
    let expected = [
        (1, "volume_type"),
        (2, "volume_target_path"),
        (3, "volume_backing_path"),
        (4, "fs_type"),
        (5, "mount_flags"),
        (6, "volume_supplemental_group"),
        (7, "volume_supplemental_group_change_policy"),
        (100, "readonly"),
        (101, "access_mode"),
        (102, "device_node"),
    ];
    assert_eq!(
        numbers,
        expected.map(|(number, name)| (number, name.to_owned()))
    );

    let field = request.get_field_by_name("volume_type").unwrap();
    let Kind::Message(wrapper) = field.kind() else {
        panic!("{field:?}");
    };
    let mut block = DynamicMessage::new(wrapper);
    block.set_field_by_name("type", Value::EnumNumber(1));
    let text = |text: &str| Value::String(text.to_owned());
    let fields = [
        ("volume_type", Value::Message(block)),
        ("volume_target_path", text(utf8(&target))),
        ("volume_backing_path", text(utf8(device.path()))),
        ("fs_type", text("xfs")),
        ("mount_flags", Value::List(vec![text("noatime")])),
    ];
    call(&ops, &pool, "RuntimeStageVolume", &fields).unwrap();
    assert_eq!(
        mount_info(&node, &target).unwrap()["options"],
        json!(["noatime"])
    );
    let only_target = &fields[1..2];
    let error = call(&ops, &pool, "RuntimeGetVolumeStats", only_target).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");

    let sandbox = node.sandbox("pod-a");
    let app = node.app(&sandbox, &target, "/data");
    let df = || {
        let total = app.sh("df -P -k /data | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2");
        total.parse::<i64>().unwrap() * 1024
    };
    let total = || {
        let stats = call(&ops, &pool, "RuntimeGetVolumeStats", only_target).unwrap();
        let usage = stats.get_field_by_name("usage").unwrap().into_owned();
        let bytes = usage
            .as_list()
            .unwrap()
            .iter()
            .filter_map(Value::as_message);
        let mut bytes =
            bytes.filter(|it| it.get_field_by_name("unit").unwrap().as_enum_number() == Some(1));
        number(bytes.next().expect("bytes"), "total")
    };
    let before = total();
    assert_eq!(before, df());
    device.set_size(400 << 20);
    let grown = call(&ops, &pool, "RuntimeExpandVolume", only_target).unwrap();
    assert_eq!(number(&grown, "capacity_bytes"), 400 << 20);
    assert!(total() > before && total() == df());
    let error = call(&ops, &pool, "RuntimeUnstageVolume", only_target).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    end([app, sandbox]);
    call(&ops, &pool, "RuntimeUnstageVolume", only_target).unwrap();
    assert_eq!(mount_info(&node, &target), None);
}

#[test]
fn an_unknown_method_is_unimplemented() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let mut client = Grpc::new(ops.channel(ops.socket()));
    for path in [
        "/crust.v1.Runtime/NoSuchCall",
        "/no.such.Service/Call",
        "/crust.runtime.v1alpha1.RuntimeAssistedStorageManagement/RuntimeGetCapabilities",
    ] {
        let error = ops.block_on(async {
            client.ready().await.expect("a connection");
            let path = PathAndQuery::try_from(path).unwrap();
            client.unary(Request::new(Vec::new()), path, Bytes).await
        });
        assert_eq!(error.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
}
