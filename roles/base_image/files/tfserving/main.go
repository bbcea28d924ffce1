// A stand-in for TensorFlow Serving's model server, whose binary is published only inside images. It has the paths, options, REST interface
// and errors of the real one and serves models such as half_plus_two from real SavedModel folders; it has no gRPC and computes little else.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	predictionPath = regexp.MustCompile(`^(?i:/v1/models/([^/:]+)(?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?:(classify|regress|predict))$`)
	statusPath     = regexp.MustCompile(`^(?i:/v1/models(?:/([^/:]+))?(?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?(?:/(metadata))?)$`)
	ourPaths       = regexp.MustCompile(`^(?i:/v1/.*)$`)
)

func logf(severity, format string, arguments ...interface{}) {
	fmt.Fprintf(os.Stderr, "%s: %s stand-in] %s\n", time.Now().Format("2006-01-02 15:04:05.000000"), severity, fmt.Sprintf(format, arguments...))
}

type server struct {
	*manager
	metricsPath string

	mu     sync.Mutex
	counts map[string]int
}

func targetOf(name, number, label string) (t target, failed *status) {
	t.name, _ = url.PathUnescape(name)
	t.label, _ = url.PathUnescape(label)
	if number != "" {
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return t, invalid("Failed to convert version: %s to numeric.", number)
		}
		t.version = &n
	}
	return t, nil
}

func (s *server) process(method, path string, body []byte) (string, string, *status) {
	malformed := invalid("Malformed request: %s %s", method, path)
	if method == "POST" {
		m := predictionPath.FindStringSubmatch(path)
		if m == nil {
			return "", "", malformed
		}
		t, failed := targetOf(m[1], m[2], m[3])
		if failed != nil {
			return "", t.name, failed
		}
		// A :predict reads the body first of all, and only then looks for the model.
		if m[4] == "predict" {
			if _, failed := parseJSON(body); failed != nil {
				return "", t.name, failed
			}
		}
		_, loaded, failed := s.resolve(t)
		if failed != nil {
			return "", t.name, failed
		}
		out := ""
		switch m[4] {
		case "predict":
			out, failed = loaded.predict(body)
		case "classify":
			out, failed = loaded.classify(body)
		case "regress":
			out, failed = loaded.regress(body)
		default:
			failed = malformed
		}
		return out, t.name, failed
	}
	m := statusPath.FindStringSubmatch(path)
	if method != "GET" || m == nil {
		return "", "", malformed
	}
	if m[1] == "" {
		return "", "", invalid("Missing model name in request.")
	}
	t, failed := targetOf(m[1], m[2], m[3])
	out := ""
	if failed == nil && m[4] == "metadata" {
		out, failed = s.metadata(t)
	} else if failed == nil {
		out, failed = s.states(t)
	}
	return out, t.name, failed
}

func infoText(infos map[string]tensorInfo) string {
	blocks := []string{}
	for _, name := range sortedNames(infos) {
		info, dims := infos[name], []string{}
		for _, d := range info.shape.dims {
			dims = append(dims, fmt.Sprintf("         {\n          \"size\": \"%d\",\n          \"name\": \"%s\"\n         }", d.size, d.name))
		}
		list := "[]"
		if len(dims) > 0 {
			list = "[\n" + strings.Join(dims, ",\n") + "\n        ]"
		}
		blocks = append(blocks, fmt.Sprintf("      \"%s\": {\n       \"dtype\": \"DT_%s\",\n       \"tensor_shape\": {\n        \"dim\": %s,\n        \"unknown_rank\": %t\n       },\n       \"name\": \"%s\"\n      }",
			name, strings.ToUpper(info.dtype.String()), list, info.shape.unknownRank, info.name))
	}
	return "{\n" + strings.Join(blocks, ",\n") + "\n     }"
}

func (s *server) metadata(t target) (string, *status) {
	n, loaded, failed := s.resolve(t)
	if failed != nil {
		return "", failed
	}
	names, blocks := []string{}, []string{}
	for name := range loaded.graph.signatures {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		sig := loaded.graph.signatures[name]
		blocks = append(blocks, fmt.Sprintf("    \"%s\": {\n     \"inputs\": %s,\n     \"outputs\": %s,\n     \"method_name\": \"%s\"\n    }",
			name, infoText(sig.inputs), infoText(sig.outputs), sig.method))
	}
	return fmt.Sprintf("{\n\"model_spec\":{\n \"name\": \"%s\",\n \"signature_name\": \"\",\n \"version\": \"%d\"\n}\n,\n\"metadata\": {\"signature_def\": {\n \"signature_def\": {\n%s\n }\n}\n}\n}\n",
		t.name, n, strings.Join(blocks, ",\n")), nil
}

func (s *server) metrics() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := []string{}
	for labels, count := range s.counts {
		lines = append(lines, fmt.Sprintf(":tensorflow:serving:request_count{%s} %d\n", labels, count))
	}
	sort.Strings(lines)
	return "# TYPE :tensorflow:serving:request_count counter\n" + strings.Join(lines, "")
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if s.metricsPath != "" && path == s.metricsPath {
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, s.metrics())
		return
	}
	if !ourPaths.MatchString(path) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, "<HTML><HEAD>\n<TITLE>404 Not Found</TITLE>\n</HEAD><BODY>\n<H1>Not Found</H1>\n</BODY></HTML>\n")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	out, name, failed := s.process(r.Method, path, body)
	code, word := 200, "OK"
	if failed != nil {
		j := &writer{}
		j.open(false)
		j.str("error")
		j.str(failed.message)
		j.close()
		out, code, word = j.String(), failed.http(), failed.code
	}
	s.mu.Lock()
	s.counts[fmt.Sprintf("model_name=\"%s\",status=\"%s\"", name, word)]++
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if s.flags.on("rest_api_enable_cors_support") {
		w.Header().Set("Access-Control-Allow-Origin", "*")
	}
	w.WriteHeader(code)
	io.WriteString(w, out)
}

var batchingFields = map[string]string{"max_batch_size": "message", "batch_timeout_micros": "message", "max_enqueued_batches": "message",
	"num_batch_threads": "message", "thread_pool_name": "message", "enable_large_batch_splitting": "message", "max_execution_batch_size": "message",
	"allowed_batch_sizes": "number", "pad_variable_length_inputs": "bool"}

func build(flags flagSet) (*server, *status) {
	s := &server{manager: &manager{flags: flags}, counts: map[string]int{}}
	if flags.number("port") == 0 && flags["grpc_socket_path"] == "" {
		return nil, invalid("At least one of server_options.grpc_port or server_options.grpc_socket_path must be set.")
	}
	if flags["model_base_path"] == "" && flags["model_config_file"] == "" {
		return nil, invalid("Both server_options.model_base_path and server_options.model_config_file are empty!")
	}
	var failed *status
	if flags["model_config_file"] != "" {
		if s.models, failed = configured(flags["model_config_file"]); failed != nil {
			return nil, failed
		}
	} else {
		name := flags["model_name"]
		logf("I", "Building single TensorFlow model file config:  model_name: %s model_base_path: %s", name, flags["model_base_path"])
		s.models = map[string]*served{name: {name: name, base: flags["model_base_path"], latest: 1, labels: map[string]int64{}, versions: map[int64]*version{}}}
	}
	if file := flags["batching_parameters_file"]; file != "" {
		if !flags.on("enable_batching") {
			return nil, invalid("server_options.batching_parameters_file is set without setting server_options.enable_batching to true.")
		}
		parameters, failed := parseProtoText(file)
		if failed != nil {
			return nil, failed
		}
		if parameters.check(batchingFields) != nil {
			return nil, invalid("Invalid protobuf file: '%s'", file)
		}
		logf("I", "Wrapping session to perform batch processing")
	}
	if failed := s.start(); failed != nil {
		return nil, failed
	}
	if file := flags["monitoring_config_file"]; file != "" {
		config, failed := parseProtoText(file)
		if failed != nil {
			return nil, failed
		}
		if config.check(map[string]string{"prometheus_config": "message"}) != nil {
			return nil, invalid("Invalid protobuf file: '%s'", file)
		}
		for _, p := range config.messages("prometheus_config") {
			if p.check(map[string]string{"enable": "bool", "path": "text"}) != nil {
				return nil, invalid("Invalid protobuf file: '%s'", file)
			}
			if p.text("enable") == "true" {
				if s.metricsPath = p.text("path"); s.metricsPath == "" {
					s.metricsPath = "/monitoring/prometheus/metrics"
				}
			}
		}
	}
	return s, nil
}

func main() {
	flags, unknown, ok := parseFlags(os.Args[1:])
	if !ok || len(unknown) > 0 && unknown[0] == "--help" {
		fmt.Print(usage(os.Args[0]))
		os.Exit(255)
	}
	if flags.on("version") {
		fmt.Println("TensorFlow ModelServer: stand-in\nTensorFlow Library: none")
		return
	}
	if len(unknown) > 0 {
		fmt.Printf("unknown argument: %s\n%s", unknown[0], usage(os.Args[0]))
	}
	s, failed := build(flags)
	if failed != nil {
		fmt.Printf("Failed to start server. Error: %v\n", failed)
		os.Exit(255)
	}
	port := flags.number("rest_api_port")
	if port == 0 || port == flags.number("port") {
		logf("E", "Skipped exporting HTTP/REST API.")
		select {}
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		logf("E", "Failed to start HTTP Server at localhost:%d: %v", port, err)
		select {}
	}
	logf("I", "Exporting HTTP/REST API at:localhost:%d ...", port)
	if err := (&http.Server{Handler: s, IdleTimeout: 50 * time.Second}).Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		logf("E", "%v", err)
		os.Exit(1)
	}
}
