module tensorflow_model_server

go 1.19
