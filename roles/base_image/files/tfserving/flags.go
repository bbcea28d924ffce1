package main

import (
	"fmt"
	"strconv"
	"strings"
)

// The options of tensorflow_model_server. Those that this stand-in does nothing with are taken, and their values checked, too.
var options = []struct{ name, kind, value, usage string }{
	{"port", "int32", "8500", "TCP port to listen on for gRPC/HTTP API. Disabled if port set to zero."},
	{"grpc_socket_path", "string", "", "If non-empty, listen to a UNIX socket for gRPC API on the given path."},
	{"rest_api_port", "int32", "0", "Port to listen on for HTTP/REST API. If set to zero HTTP/REST API will not be exported."},
	{"rest_api_num_threads", "int32", "8", "Number of threads for HTTP/REST API processing."},
	{"rest_api_timeout_in_ms", "int32", "30000", "Timeout for HTTP/REST API calls."},
	{"rest_api_enable_cors_support", "bool", "false", "Enable CORS headers in response"},
	{"enable_batching", "bool", "false", "enable batching"},
	{"allow_version_labels_for_unavailable_models", "bool", "false", "If true, allows assigning unused version labels to models that are not available yet."},
	{"batching_parameters_file", "string", "", "If non-empty, read an ascii BatchingParameters protobuf from the supplied file name."},
	{"enable_per_model_batching_parameters", "bool", "false", "Enables model specific batching params."},
	{"model_config_file", "string", "", "If non-empty, read an ascii ModelServerConfig protobuf from the supplied file name, and serve the models in that file."},
	{"model_config_file_poll_wait_seconds", "int32", "0", "Interval in seconds between each poll of the filesystem for model_config_file."},
	{"model_name", "string", "default", "name of model (ignored if --model_config_file flag is set)"},
	{"model_base_path", "string", "", "path to export (ignored if --model_config_file flag is set, otherwise required)"},
	{"num_load_threads", "int32", "0", "The number of threads in the thread-pool used to load servables."},
	{"num_unload_threads", "int32", "0", "The number of threads in the thread-pool used to unload servables."},
	{"max_num_load_retries", "int32", "5", "maximum number of times it retries loading a model after the first failure, before giving up."},
	{"load_retry_interval_micros", "int64", "60000000", "The interval, in microseconds, between each servable load retry."},
	{"file_system_poll_wait_seconds", "int32", "1", "Interval in seconds between each poll of the filesystem for new model version."},
	{"flush_filesystem_caches", "bool", "true", "If true (the default), filesystem caches will be flushed after the initial load of all servables."},
	{"tensorflow_session_parallelism", "int64", "0", "Number of threads to use for running a Tensorflow session."},
	{"tensorflow_session_config_file", "string", "", "If non-empty, read an ascii TensorFlow Session ConfigProto protobuf from the supplied file name."},
	{"tensorflow_intra_op_parallelism", "int64", "0", "Number of threads to use to parallelize the execution of an individual op."},
	{"tensorflow_inter_op_parallelism", "int64", "0", "Controls the number of operators that can be executed simultaneously."},
	{"use_alts_credentials", "bool", "false", "Use Google ALTS credentials"},
	{"ssl_config_file", "string", "", "If non-empty, read an ascii SSLConfig protobuf from the supplied file name and set up a secure gRPC channel"},
	{"platform_config_file", "string", "", "If non-empty, read an ascii PlatformConfigMap protobuf from the supplied file name."},
	{"per_process_gpu_memory_fraction", "float", "0.0", "Fraction that each process occupies of the GPU memory space."},
	{"saved_model_tags", "string", "serve", "Comma-separated set of tags corresponding to the meta graph def to load from SavedModel."},
	{"grpc_channel_arguments", "string", "", "A comma separated list of arguments to be passed to the grpc server."},
	{"grpc_max_threads", "int32", "8", "Max grpc server threads to handle grpc messages."},
	{"enable_model_warmup", "bool", "true", "Enables model warmup."},
	{"num_request_iterations_for_warmup", "int32", "0", "Number of times a request is iterated during warmup replay."},
	{"version", "bool", "false", "Display version"},
	{"monitoring_config_file", "string", "", "If non-empty, read an ascii MonitoringConfig protobuf from the supplied file name"},
	{"remove_unused_fields_from_bundle_metagraph", "bool", "true", "Removes unused fields from MetaGraphDef proto message to save memory."},
	{"prefer_tflite_model", "bool", "false", "EXPERIMENTAL; CAN BE REMOVED ANYTIME! Prefer TensorFlow Lite model."},
	{"num_tflite_pools", "int32", "2", "EXPERIMENTAL; CAN BE REMOVED ANYTIME! Number of TFLite interpreters in an interpreter pool."},
	{"num_tflite_interpreters_per_pool", "int32", "1", "EXPERIMENTAL; CAN BE REMOVED ANYTIME! Number of TFLite interpreters."},
	{"enable_signature_method_name_check", "bool", "false", "Enable method_name check for SignatureDef."},
	{"xla_cpu_compilation_enabled", "bool", "false", "EXPERIMENTAL; CAN BE REMOVED ANYTIME! Enable XLA:CPU JIT."},
	{"enable_profiler", "bool", "true", "Enable profiler service."},
}

type flagSet map[string]string

func (f flagSet) number(name string) int {
	n, _ := strconv.ParseInt(f[name], 10, 64)
	return int(n)
}

func (f flagSet) on(name string) bool { return f[name] == "true" }

func usage(program string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "usage: %s\nFlags:\n", program)
	for _, o := range options {
		value := o.value
		if o.kind == "string" {
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&out, "\t%-32s\t%s\t%s\n", fmt.Sprintf("--%s=%s", o.name, value), o.kind, o.usage)
	}
	return out.String()
}

// The options' values, the last of several counting, and the words that are none. Not ok where a value is of the wrong kind.
func parseFlags(arguments []string) (flags flagSet, unknown []string, ok bool) {
	flags, ok = flagSet{}, true
	kinds := map[string]string{}
	for _, o := range options {
		flags[o.name], kinds[o.name] = o.value, o.kind
	}
	for _, argument := range arguments {
		name, value, given := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		kind, known := kinds[name]
		if !known || !strings.HasPrefix(argument, "--") {
			unknown = append(unknown, argument)
			continue
		}
		var err error
		switch {
		case kind == "bool" && !given:
			value = "true"
		case kind == "bool":
			var truth bool
			truth, err = strconv.ParseBool(value)
			value = strconv.FormatBool(truth)
		case kind == "int32":
			_, err = strconv.ParseInt(value, 10, 32)
		case kind == "int64":
			_, err = strconv.ParseInt(value, 10, 64)
		case kind == "float":
			_, err = strconv.ParseFloat(value, 32)
		case !given:
			err = strconv.ErrSyntax
		}
		if err != nil {
			logf("E", "Couldn't interpret value %s for flag %s.", value, name)
			ok = false
			continue
		}
		flags[name] = value
	}
	return flags, unknown, ok
}
