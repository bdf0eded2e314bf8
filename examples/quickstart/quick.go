// Curbstone from Go: make a queue, put a message in, take it and say that it is done. Run it with go run quick.go
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

var queue = "/v2/demo/queues/hello-go"

func call(method, path, contentType string, body []byte, into any) {
	request, err := http.NewRequest(method, queue+path, bytes.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer reply.Body.Close()
	answer, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode >= 300 {
		log.Fatal(reply.Status, " ", string(answer), err)
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			log.Fatal(err)
		}
	}
}

func main() {
	server := os.Getenv("CURBSTONE_URL")
	if server == "" {
		server = "http://127.0.0.1:8080"
	}
	queue = server + queue
	call("PUT", "", "application/json", []byte("{}"), nil)
	call("POST", "/messages", "text/plain", []byte("hello"), nil) // on disk when it returns
	var taken struct {
		Messages []struct{ Message, AckId string }
	}
	call("POST", "/messages/lease", "application/json", []byte(`{"wait": 10, "seconds": 60}`), &taken)
	for _, each := range taken.Messages {
		fmt.Println("got", each.Message)
		ack, _ := json.Marshal(map[string][]string{"ackIds": {each.AckId}})
		call("POST", "/messages/ack", "application/json", ack, nil) // without it the message is delivered again after 60 s
	}
}
