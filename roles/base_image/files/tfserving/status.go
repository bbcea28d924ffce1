package main

import "fmt"

// A status as TensorFlow's: a canonical code and a message. A nil pointer is OK.
type status struct {
	code    string
	message string
}

func fail(code, format string, arguments ...interface{}) *status {
	return &status{code, fmt.Sprintf(format, arguments...)}
}

func invalid(format string, arguments ...interface{}) *status {
	return fail("INVALID_ARGUMENT", format, arguments...)
}

func (s *status) Error() string { return s.code + ": " + s.message }

// The HTTP status that TensorFlow Serving answers with.
func (s *status) http() int {
	switch s.code {
	case "INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE":
		return 400
	case "NOT_FOUND":
		return 404
	case "UNIMPLEMENTED":
		return 501
	case "UNAVAILABLE":
		return 503
	}
	return 500
}
