<?php
// Curbstone from PHP: make a queue, put a message in, take it and say that it is done. Run it with php quick.php
$queue = (getenv('CURBSTONE_URL') ?: 'http://127.0.0.1:8080') . '/v2/demo/queues/hello-php';

function call(string $method, string $path, string $body, string $type = 'application/json'): array
{
    global $queue;
    $http = ['method' => $method, 'header' => "Content-Type: $type", 'content' => $body, 'ignore_errors' => true];
    $answer = file_get_contents($queue . $path, false, stream_context_create(['http' => $http]));
    if ($answer === false || !preg_match('/ 2\d\d /', $http_response_header[0])) {
        throw new RuntimeException("$method $path: $answer");
    }
    return json_decode($answer, true) ?? [];
}

call('PUT', '', '{}');
call('POST', '/messages', 'hello', 'text/plain'); // on disk when it returns
foreach (call('POST', '/messages/lease', '{"wait": 10, "seconds": 60}')['messages'] as $message) {
    echo 'got ', $message['message'], "\n";
    call('POST', '/messages/ack', json_encode(['ackIds' => [$message['ackId']]])); // without it it is delivered again after 60 s
}
