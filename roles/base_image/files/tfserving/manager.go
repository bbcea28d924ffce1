package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Versions come and go as in TensorFlow Serving: the newest is served unless a configuration says otherwise, and the one before it goes
// when the newer one is there. What a version was stays known after it has ended.

type model struct {
	graph     *metaGraph
	variables map[string]*tensor
}

type version struct {
	state  string // START, LOADING, AVAILABLE, UNLOADING, END
	health *status
	model  *model
}

type served struct {
	name, base string
	latest     int              // how many of the newest versions are served; 0 for all
	specific   []int64          // or these
	labels     map[string]int64 // names for versions

	mu       sync.Mutex
	versions map[int64]*version
}

type manager struct {
	flags  flagSet
	models map[string]*served
}

// Loads a version's folder, strictly: whatever the real server refuses at this point, and what cannot be computed here.
func load(folder, tags string) (*model, *status) {
	graph, failed := readSavedModel(folder, tags)
	if failed != nil {
		return nil, failed
	}
	variables, failed := readVariables(folder)
	if failed != nil {
		return nil, failed
	}
	for name, sig := range graph.signatures {
		for _, output := range sig.outputs {
			if op := graph.unknownOperation(output.name, map[string]bool{}); op != "" {
				return nil, fail("UNIMPLEMENTED", "this stand-in for TensorFlow Serving computes half_plus_two only; signature %s needs the operation %s", name, op)
			}
		}
	}
	return &model{graph, variables}, nil
}

// The versions that should be served now, by the folder's numbers.
func (s *served) aspired() (map[int64]string, error) {
	entries, err := os.ReadDir(s.base)
	if err != nil {
		return nil, fmt.Errorf("Could not find base path %s for servable %s with error NOT_FOUND: %s not found", s.base, s.name, s.base)
	}
	found := map[int64]string{}
	numbers := []int64{}
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil {
			if _, twice := found[n]; !twice {
				numbers = append(numbers, n)
			}
			found[n] = filepath.Join(s.base, e.Name())
		}
	}
	sort.Slice(numbers, func(i, j int) bool { return numbers[i] > numbers[j] })
	wanted := map[int64]bool{}
	for i, n := range numbers {
		wanted[n] = len(s.specific) == 0 && (s.latest == 0 || i < s.latest)
	}
	for _, n := range s.specific {
		if _, there := found[n]; !there {
			logf("W", "Version %d of servable %s, which was requested to be served as a 'specific' version in the servable's version policy, was not found in the file system", n, s.name)
		}
		wanted[n] = true
	}
	for n := range found {
		if !wanted[n] {
			delete(found, n)
		}
	}
	if len(found) == 0 {
		logf("W", "No versions of servable %s found under base path %s. Did you forget to name your leaf directory as a number (eg. '/1/')?", s.name, s.base)
	}
	return found, nil
}

// Looks for new versions once, loads them and ends those that are no longer wanted.
func (m *manager) poll(s *served) {
	found, err := s.aspired()
	if err != nil {
		logf("E", "FileSystemStoragePathSource encountered a filesystem access error: %v", err)
		return
	}
	numbers := []int64{}
	for n := range found {
		numbers = append(numbers, n)
	}
	sort.Slice(numbers, func(i, j int) bool { return numbers[i] < numbers[j] })
	for _, n := range numbers {
		s.mu.Lock()
		v := s.versions[n]
		// One that has ended is loaded again only when it has been away.
		fresh := v == nil || v.state == "END" && v.health == nil
		if fresh {
			v = &version{state: "START"}
			s.versions[n] = v
		}
		s.mu.Unlock()
		if fresh {
			go m.bring(s, n, v, found[n])
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A version that is no longer wanted goes when one that is wanted is there, or none is wanted.
	ready := len(found) == 0
	for n := range found {
		ready = ready || s.versions[n].state == "AVAILABLE"
	}
	for n, v := range s.versions {
		if _, wanted := found[n]; wanted || v.state == "START" || v.state == "LOADING" {
			continue
		}
		if v.state == "AVAILABLE" && ready {
			logf("I", "Successfully unloaded servable version {name: %s version: %d}", s.name, n)
			v.state, v.model = "END", nil
		}
		if v.state == "END" {
			v.health = nil
		}
	}
}

func (m *manager) bring(s *served, n int64, v *version, folder string) {
	set := func(state string, health *status, loaded *model) {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.state, v.health, v.model = state, health, loaded
	}
	set("LOADING", nil, nil)
	logf("I", "Loading servable version {name: %s version: %d} from %s", s.name, n, folder)
	for try := 0; ; try++ {
		loaded, failed := load(folder, m.flags["saved_model_tags"])
		if failed == nil {
			logf("I", "Successfully loaded servable version {name: %s version: %d}", s.name, n)
			set("AVAILABLE", nil, loaded)
			return
		}
		logf("E", "Loading servable: {name: %s version: %d} failed: %v", s.name, n, failed)
		if try >= m.flags.number("max_num_load_retries") {
			set("END", failed, nil)
			return
		}
		time.Sleep(time.Duration(m.flags.number("load_retry_interval_micros")) * time.Microsecond)
	}
}

// Waits until every model has what it should have; the error tells which have not.
func (m *manager) start() *status {
	for _, s := range m.models {
		m.poll(s)
		if wait := m.flags.number("file_system_poll_wait_seconds"); wait > 0 {
			go func(s *served) {
				for range time.Tick(time.Duration(wait) * time.Second) {
					m.poll(s)
				}
			}(s)
		}
	}
	for _, s := range m.models {
		for !s.settled() {
			time.Sleep(20 * time.Millisecond)
		}
	}
	message, count := "", 0
	for _, s := range m.models {
		s.mu.Lock()
		for n, v := range s.versions {
			if v.state == "END" && v.health != nil {
				message += fmt.Sprintf("{{name: %s version: %d} due to error: %v}, ", s.name, n, v.health)
				count++
			}
		}
		s.mu.Unlock()
	}
	if count > 0 {
		return fail("UNKNOWN", "%d servable(s) did not become available: {%s}", count, message)
	}
	for _, s := range m.models {
		for _, n := range s.labels {
			if s.versions[n] == nil || s.versions[n].state != "AVAILABLE" {
				if !m.flags.on("allow_version_labels_for_unavailable_models") {
					return fail("FAILED_PRECONDITION", "Request to assign label to version %d of model %s, which is not currently available for inference", n, s.name)
				}
			}
		}
	}
	return nil
}

func (s *served) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.versions {
		if v.state != "AVAILABLE" && v.state != "END" {
			return false
		}
	}
	return len(s.versions) > 0
}

// The version that a request is for.
type target struct {
	name    string
	version *int64
	label   string
}

func (m *manager) resolve(t target) (int64, *model, *status) {
	s := m.models[t.name]
	if t.label != "" {
		n, known := int64(0), false
		if s != nil {
			n, known = s.labels[t.label]
		}
		if !known {
			return 0, nil, invalid("Unrecognized servable version label: %s", t.label)
		}
		t.version = &n
	}
	request := fmt.Sprintf("Latest(%s)", t.name)
	if t.version != nil {
		request = fmt.Sprintf("Specific(%s, %d)", t.name, *t.version)
	}
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		newest := int64(-1)
		for n, v := range s.versions {
			if v.state == "AVAILABLE" && (t.version == nil || n == *t.version) && n > newest {
				newest = n
			}
		}
		if newest >= 0 {
			return newest, s.versions[newest].model, nil
		}
	}
	return 0, nil, fail("NOT_FOUND", "Servable not found for request: %s", request)
}

// The states of one version or of all, newest first, as the server prints them.
func (m *manager) states(t target) (string, *status) {
	s := m.models[t.name]
	numbers := []int64{}
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for n := range s.versions {
			if t.version == nil || n == *t.version {
				numbers = append(numbers, n)
			}
		}
	}
	if len(numbers) == 0 && t.version != nil {
		return "", fail("NOT_FOUND", "Could not find version %d of model %s", *t.version, t.name)
	} else if len(numbers) == 0 {
		return "", fail("NOT_FOUND", "Could not find any versions of model %s", t.name)
	}
	sort.Slice(numbers, func(i, j int) bool { return numbers[i] > numbers[j] })
	blocks := []string{}
	for _, n := range numbers {
		v := s.versions[n]
		health := &status{"OK", ""}
		if v.health != nil {
			health = v.health
		}
		quoted := &writer{}
		quoted.str(health.message)
		blocks = append(blocks, fmt.Sprintf("  {\n   \"version\": \"%d\",\n   \"state\": \"%s\",\n   \"status\": {\n    \"error_code\": \"%s\",\n    \"error_message\": %s\n   }\n  }",
			n, v.state, health.code, quoted.String()))
	}
	return "{\n \"model_version_status\": [\n" + strings.Join(blocks, ",\n") + "\n ]\n}\n", nil
}

// The models of a configuration file (ModelServerConfig).
func configured(path string) (map[string]*served, *status) {
	config, failed := parseProtoText(path)
	if failed != nil {
		return nil, failed
	}
	bad := invalid("Invalid protobuf file: '%s'", path)
	models := map[string]*served{}
	if config.check(map[string]string{"model_config_list": "message", "custom_model_config": "message"}) != nil {
		return nil, bad
	}
	for _, list := range config.messages("model_config_list") {
		if list.check(map[string]string{"config": "message"}) != nil {
			return nil, bad
		}
		for _, c := range list.messages("config") {
			if c.check(map[string]string{"name": "text", "base_path": "text", "model_platform": "text", "model_type": "text",
				"model_version_policy": "message", "version_labels": "message", "logging_config": "message"}) != nil {
				return nil, bad
			}
			s := &served{name: c.text("name"), base: c.text("base_path"), latest: 1, labels: map[string]int64{}, versions: map[int64]*version{}}
			if c.text("model_platform") != "tensorflow" || s.name == "" || s.base == "" || models[s.name] != nil {
				return nil, invalid("Expected each model to have a name of its own, a base_path and the model_platform tensorflow: %s", s.name)
			}
			for _, policy := range c.messages("model_version_policy") {
				if policy.check(map[string]string{"latest": "message", "all": "message", "specific": "message"}) != nil {
					return nil, bad
				}
				if len(policy["all"]) > 0 {
					s.latest = 0
				}
				for _, latest := range policy.messages("latest") {
					if n, _ := strconv.Atoi(latest.text("num_versions")); n > 1 {
						s.latest = n
					}
				}
				for _, specific := range policy.messages("specific") {
					for _, v := range specific["versions"] {
						n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
						if err != nil {
							return nil, bad
						}
						s.specific = append(s.specific, n)
					}
				}
			}
			for _, label := range c.messages("version_labels") {
				n, err := strconv.ParseInt(label.text("value"), 10, 64)
				if err != nil || label.check(map[string]string{"key": "text", "value": "number"}) != nil {
					return nil, bad
				}
				s.labels[label.text("key")] = n
			}
			models[s.name] = s
		}
	}
	return models, nil
}
